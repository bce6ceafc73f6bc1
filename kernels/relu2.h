// Squared ReLU. Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// out = max(x, 0)^2, n elements. out may alias x. maximum: of out (kernels/fp8.h), or nullptr.
template <typename T>
void relu2_forward(T* out, const T* x, int64_t n, const Stream& stream, float* maximum = nullptr);
// dx (N, C) = dout * 2 max(x, 0). The other arguments are those of gelu_backward (kernels/gelu.h).
size_t relu2_backward_scratch_bytes(int N, int C);
template <typename T>
void relu2_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                    const Stream& stream, float* maximum = nullptr);

}  // namespace teon
