// Lion. Conventions: kernels/ops.h.
#pragma once

#include <cstdint>

#include "kernels/step_control.h"

namespace teon {

// An update by UpdateRate (kernels/step_control.h) with Lion's direction (Chen et al., arXiv 2302.06675, algorithm 2):
//   u = sign(beta1 m + (1-beta1) g); m = beta2 m + (1-beta2) g.
template <typename T>
void lion_update(float* master, T* work, float* m, const float* grad, const StepControl* control, int64_t n,
                 const UpdateRate& rate, float beta1, float beta2, const Stream& stream);

}  // namespace teon
