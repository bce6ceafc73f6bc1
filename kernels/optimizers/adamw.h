// AdamW. Conventions: kernels/ops.h.
#pragma once

#include <cstdint>

#include "kernels/step_control.h"

namespace teon {

// An update by UpdateRate (kernels/step_control.h) with AdamW's direction (Loshchilov & Hutter, arXiv 1711.05101):
//   m = beta1 m + (1-beta1) g; v = beta2 v + (1-beta2) g^2; u = (m / bc1) / (sqrt(v / bc2) + eps)
// where bc1 and bc2 are the bias corrections of control.
struct AdamWConstants {
    float beta1, beta2, eps;
};
template <typename T>
void adamw_update(float* master, T* work, float* m, float* v, const float* grad, const StepControl* control, int64_t n,
                  const UpdateRate& rate, const AdamWConstants& constants, const Stream& stream);

}  // namespace teon
