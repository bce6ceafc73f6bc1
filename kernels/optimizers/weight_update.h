// How a step changes a weight: the one formula by which learning rate and weight decay reach the weights. Private to
// kernels/.
#pragma once

#include "kernels/step_control.h"
#include "runtime/simt.h"

namespace teon {

// The factors of UpdateRate's formula in one step. Products that are added to something are explicit fmaf (common.h).
struct WeightUpdate {
    float rate;       // multiplies the optimizer's direction
    float keep;       // multiplies the weight, unless the update moves it away from zero
    float keep_away;  // multiplies the weight if the update moves it away from zero

    // The factor of `weight`, from which the update subtracts delta.
    __device__ __forceinline__ float decay_factor(float weight, float delta) const {
        return delta * weight < 0.0f ? keep_away : keep;
    }
};

// control may be nullptr: then the schedule's factor is 1.
__device__ __forceinline__ WeightUpdate weight_update(const UpdateRate& rate, const StepControl* control) {
    const float lr = control != nullptr ? rate.lr * control->lr_factor : rate.lr;
    const float keep = fmaf(-lr, rate.weight_decay, 1.0f);
    return {lr * rate.lr_scale, keep, rate.cautious ? 1.0f : keep};
}

}  // namespace teon
