// Dropout (Srivastava et al. 2014). Conventions: kernels/ops.h.
#pragma once

#include "kernels/dropout_mask.h"
#include "runtime/cuda/device.h"

namespace teon {

void check_dropout(const DropoutMask& mask);  // throws Error unless the members are within these limits

// out (N, C) = residual + in / (1 - p), but residual where an element of `in` is dropped. residual: nullptr for 0. The
// gradient of `in` is the same function of that of `out`, without the residual. out may be in or residual. T_rows: rows
// of a sequence; a row's number within its sequence is the mask's row. Values that are not finite stay so: a dropped
// infinity becomes NaN.
template <typename T>
void dropout(T* out, const T* residual, const T* in, int N, int T_rows, int C, const DropoutMask& mask,
             const Stream& stream);

}  // namespace teon
