// The activation functions of the MLP. Conventions: kernels/ops.h.
#pragma once

#include "kernels/activation_kinds.h"
#include "runtime/cuda/device.h"

namespace teon {

// out (N, F) = f(x), with x (N, F). With a gate, x (N, 2F) holds gate in its first F columns and up in the others, and
// out = f(gate) * up; else out may alias x. maximum: of out (kernels/fp8.h), or nullptr.
template <typename T>
void activation_forward(ActivationKind kind, T* out, const T* x, int N, int F, const Stream& stream,
                        float* maximum = nullptr);

// dx, as x, from dout (N, F). dx may alias x if there is a gate, else dout. dbias (F), float, or nullptr: the gradient
// of a bias that was added to x, which is the column sums of dx before rounding; += if accumulate, else =. With a gate,
// dbias must be nullptr. scratch: activation_backward_scratch_bytes(kind, N, F). maximum: of dx, or nullptr.
size_t activation_backward_scratch_bytes(ActivationKind kind, int N, int F);
template <typename T>
void activation_backward(ActivationKind kind, T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N,
                         int F, bool accumulate, const Stream& stream, float* maximum = nullptr);

}  // namespace teon
