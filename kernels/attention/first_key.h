// Which keys a row of attention sees: from its first key to its own. Conventions: kernels/ops.h.
#pragma once

#include <algorithm>

#include "runtime/cuda/device.h"

namespace teon {

// first_key (B, T) of attention whose rows see `window` keys, their own included, but none of an earlier document:
// max(doc_start[t], t - window + 1). doc_start (B, T) may be nullptr for 0 everywhere. It does not decrease along T if
// doc_start does not. Throws Error for a window below 1, in which a row would not see itself.
void window_first_keys(int* first_key, const int* doc_start, int B, int T, int window, const Stream& stream);

// The mean number of keys that a row of a sequence of T sees, as FLOPs count it: without a window (0) T / 2. Each row
// that sees all keys before it counts half of its own.
inline double mean_keys(int T, int window) {
    const double W = window > 0 ? std::min(window, T) : T;
    return W - W * W / (2.0 * T);
}

}  // namespace teon
