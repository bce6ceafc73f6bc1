// Token and position embeddings. Conventions: kernels/ops.h.
#pragma once

#include "runtime/cuda/device.h"

namespace teon {

// out (N, C) = wte[tokens] + wpe[positions]; wte (V, C), wpe (positions, C) or nullptr for none.
template <typename T>
void embedding_forward(T* out, const int* tokens, const int* positions, const T* wte, const T* wpe, int N, int C,
                       const Stream& stream);

// dtable (rows, C) += the sum of dout (N, C) over the rows i with ids[i] = row. order (N) lists the rows i sorted by
// ids[i] (see Batch) and is the order of summation. For tokens and positions alike. Rows of dtable that are not in ids
// are not touched.
template <typename T>
void embedding_backward(float* dtable, const T* dout, const int* ids, const int* order, int N, int C,
                        const Stream& stream);

}  // namespace teon
