// The loss and its gradient. Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// Softmax cross-entropy, fused. logits (N, Vp), columns V..Vp-1 are padding: outside the softmax, and their gradient is
// 0. losses (N) = -log softmax(logits)[target], 0 where target < 0, NaN (with its row's gradient) where target >= V. If
// with_gradient, logits are overwritten by grad_scale * (softmax - onehot) (0 where target < 0).
template <typename T>
void classifier(T* logits, float* losses, const int* targets, int N, int V, int Vp, float grad_scale,
                bool with_gradient, const Stream& stream);

}  // namespace teon
