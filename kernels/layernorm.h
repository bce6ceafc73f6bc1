// LayerNorm with bias. Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// out (N, C) = residual + (x - mean) * rstd * weight + bias, row by row. mean, rstd (N) are outputs. residual may be
// nullptr. maximum: of out (kernels/fp8.h), or nullptr.
template <typename T>
void layernorm_forward(T* out, float* mean, float* rstd, const T* residual, const T* x, const T* weight, const T* bias,
                       int N, int C, float eps, const Stream& stream, float* maximum = nullptr);

// dx (N, C) = dresidual + (d out / d x)^T dout. dresidual may be nullptr. dx may alias dresidual or dout. dweight,
// dbias (C), float. dx_sums (C), float, or nullptr: the gradient of a bias that was added to x, which is the column
// sums of dx before rounding. All three are += if accumulate, else =. scratch: layernorm_backward_scratch_bytes(N, C).
// maximum: of dx, or nullptr.
size_t layernorm_backward_scratch_bytes(int N, int C);
template <typename T>
void layernorm_backward(T* dx, float* dweight, float* dbias, float* dx_sums, void* scratch, const T* dout,
                        const T* dresidual, const T* x, const float* mean, const float* rstd, const T* weight, int N,
                        int C, bool accumulate, const Stream& stream, float* maximum = nullptr);

}  // namespace teon
