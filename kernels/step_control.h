// The decision on each optimizer step, made on the device. Conventions: kernels/ops.h.
#pragma once

#include "runtime/cuda/device.h"

namespace teon {

// The mean and variance of a series: exact over its first 128 values, then exponentially weighted with a memory of 128
// values. All zero before the first value.
struct SeriesStats {
    float mean = 0, variance = 0;
    int count = 0;  // values seen, up to 128
};

inline constexpr int kSkipNonfinite = 1;
inline constexpr int kSkipSpike = 2;

// The decision on one optimizer step. It is in device memory, so that no step waits for the host. Before the first
// step all members are 0, except that lr_factor may be 1.
struct StepControl {
    float grad_norm = 0;         // global norm of the gradient before clipping
    float scale = 0;             // factor of the gradients: min(1, clip / norm); 0 if the step is skipped
    int skip = 0;                // 0, or kSkipNonfinite or kSkipSpike: then no state may change
    int updates = 0;             // updates applied so far, this one included: AdamW's t
    float bias_correction1 = 0;  // 1 - beta1^updates
    float bias_correction2 = 0;  // 1 - beta2^updates
    int skipped_in_row = 0;      // consecutive skipped steps, this one included
    // Distance from the mean of the steps before, in their standard deviations; 0 for the first 16 steps, infinity if
    // loss or norm is not finite.
    float loss_z = 0, grad_norm_z = 0;
    SeriesStats loss_stats = {}, grad_norm_stats = {};
    float lr_factor = 1;  // factor of the learning rates, from the schedule
};
// Fills *control from norm_squared[0], loss[0] (both on the device) and lr_factor, and increments `updates` unless the
// step is skipped. No other kernel of a step has an argument that changes from step to step. clip = 0 turns clipping
// off. spike_limit > 0 skips a step whose loss_z or grad_norm_z is greater. The statistics leave out values that are
// not finite and count outliers as 4 standard deviations, so that neither blinds them and they adapt to a lasting
// change.
void step_control(StepControl* control, const float* norm_squared, const float* loss, float lr_factor, float clip,
                  float spike_limit, float beta1, float beta2, const Stream& stream);

// The learning rate and weight decay of some weights. With r = lr * control->lr_factor and the optimizer's direction u:
//   master = master (1 - r weight_decay) - r lr_scale u; work = master rounded (work may be nullptr)
// Cautious weight decay (Chen et al., arXiv 2510.12402) decays only weights with u * master >= 0. Nothing changes if
// control->skip is not 0. kernels/optimizers/weight_update.h has the device's side.
struct UpdateRate {
    float lr = 0;        // peak
    float lr_scale = 1;  // of the update alone; weight decay does not have it
    float weight_decay = 0;
    bool cautious = false;
};

}  // namespace teon
