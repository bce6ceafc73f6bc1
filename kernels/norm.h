// LayerNorm and RMSNorm, fused with the addition of a residual. Conventions: kernels/ops.h.
#pragma once

#include "kernels/norm_kinds.h"
#include "runtime/cuda/device.h"

namespace teon {

// out (N, C) = residual + (x - mean) * rstd * weight + bias, row by row. mean, rstd (N) are outputs. residual may be
// nullptr. A norm that is not centered has neither mean nor bias. maximum: of out (kernels/fp8.h), or nullptr.
template <typename T>
struct NormForward {
    T* out;
    float* mean = nullptr;
    float* rstd;
    const T* residual = nullptr;
    const T* x;
    const T* weight;
    const T* bias = nullptr;
    int N, C;
    float eps;
    float* maximum = nullptr;
};
template <typename T>
void norm_forward(NormKind kind, const NormForward<T>& a, const Stream& stream);

// dx (N, C) = dresidual + (d out / d x)^T dout. dresidual may be nullptr. dx may alias dresidual or dout. dweight (C),
// float, and if the norm is centered dbias (C), and dx_sums (C) or nullptr: the gradient of a bias that was added to x,
// which is the column sums of dx before rounding. All three are += if accumulate, else =. scratch:
// norm_backward_scratch_bytes(kind, N, C). maximum: of dx, or nullptr.
template <typename T>
struct NormBackward {
    T* dx;
    float* dweight;
    float* dbias = nullptr;
    float* dx_sums = nullptr;
    void* scratch;
    const T* dout;
    const T* dresidual = nullptr;
    const T* x;
    const float* mean = nullptr;
    const float* rstd;
    const T* weight;
    int N, C;
    bool accumulate;
    float* maximum = nullptr;
};
size_t norm_backward_scratch_bytes(NormKind kind, int N, int C);
template <typename T>
void norm_backward(NormKind kind, const NormBackward<T>& a, const Stream& stream);

}  // namespace teon
