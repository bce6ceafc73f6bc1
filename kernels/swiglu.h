// SwiGLU. Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// out (N, F) = silu(gate) * up, where gate_up (N, 2F) holds gate in its first F columns and up in the others.
// maximum: of out (kernels/fp8.h), or nullptr.
template <typename T>
void swiglu_forward(T* out, const T* gate_up, int N, int F, const Stream& stream, float* maximum = nullptr);
// dgate_up (N, 2F) from dout (N, F). dgate_up may alias gate_up. maximum: of dgate_up, or nullptr.
template <typename T>
void swiglu_backward(T* dgate_up, const T* gate_up, const T* dout, int N, int F, const Stream& stream,
                     float* maximum = nullptr);

}  // namespace teon
