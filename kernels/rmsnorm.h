// RMSNorm. Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// Layernorm (kernels/layernorm.h) without mean and bias: out = residual + x * rstd * weight, where
// rstd = 1 / sqrt(mean of squares + eps). The arguments are those of layernorm.
template <typename T>
void rmsnorm_forward(T* out, float* rstd, const T* residual, const T* x, const T* weight, int N, int C, float eps,
                     const Stream& stream, float* maximum = nullptr);
size_t rmsnorm_backward_scratch_bytes(int N, int C);
template <typename T>
void rmsnorm_backward(T* dx, float* dweight, void* scratch, const T* dout, const T* dresidual, const T* x,
                      const float* rstd, const T* weight, int N, int C, bool accumulate, const Stream& stream,
                      float* maximum = nullptr);

}  // namespace teon
