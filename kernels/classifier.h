// The loss and its gradient. Conventions: kernels/ops.h.
#pragma once

#include "runtime/cuda/device.h"

namespace teon {

// Softmax cross-entropy, forward and backward. logits (N, Vp): columns V..Vp-1 are padding, which the softmax leaves
// out and whose gradient is 0. losses (N) = -log softmax(logits)[target]. If with_gradient, grad_scale * (softmax -
// onehot) overwrites the logits. A target < 0 gives a loss and a gradient of 0; a target >= V makes its row's loss and
// gradient NaN. Throws Error unless N >= 1 and Vp >= V >= 1.
template <typename T>
void classifier(T* logits, float* losses, const int* targets, int N, int V, int Vp, float grad_scale,
                bool with_gradient, const Stream& stream);

}  // namespace teon
