// GELU in its tanh form and in its exact form. Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// out = gelu_tanh(x) (base/activation.h), n elements. out may alias x. maximum: of out (kernels/fp8.h), or nullptr.
template <typename T>
void gelu_forward(T* out, const T* x, int64_t n, const Stream& stream, float* maximum = nullptr);
// dx (N, C) = dout * gelu_tanh'(x). dx may alias dout. dbias (C), float, or nullptr: the gradient of a bias that was
// added to x, which is the column sums of dx before rounding; += if accumulate, else =. scratch:
// gelu_backward_scratch_bytes(N, C). maximum: of dx, or nullptr.
size_t gelu_backward_scratch_bytes(int N, int C);
template <typename T>
void gelu_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                   const Stream& stream, float* maximum = nullptr);

// The same with gelu_erf(x), the exact form.
template <typename T>
void gelu_erf_forward(T* out, const T* x, int64_t n, const Stream& stream, float* maximum = nullptr);
size_t gelu_erf_backward_scratch_bytes(int N, int C);
template <typename T>
void gelu_erf_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                       const Stream& stream, float* maximum = nullptr);

}  // namespace teon
