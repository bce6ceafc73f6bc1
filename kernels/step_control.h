// What an optimizer step may do, decided on the device. Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// A series' mean and variance: exact over its first 128 values, then exponentially weighted with that memory. All zero:
// no value yet.
struct SeriesStats {
    float mean = 0, variance = 0;
    int count = 0;  // values seen, up to 128
};

inline constexpr int kSkipNonfinite = 1, kSkipSpike = 2;

// What one optimizer step is allowed to do; lives on the device, so that no step waits for the host. All zero: before
// the first step.
struct StepControl {
    float grad_norm = 0;         // global norm of the gradient before clipping
    float scale = 0;             // what gradients are multiplied by: min(1, clip / norm)
    int skip = 0;                // not 0: no state may change, because loss or gradient was not finite, or a spike
    int updates = 0;             // updates applied so far, this one included: AdamW's t
    float bias_correction1 = 0;  // 1 - beta1^updates
    float bias_correction2 = 0;
    int skipped_in_row = 0;  // steps skipped one after the other, this one included
    float loss_z = 0,
          grad_norm_z = 0;  // in standard deviations of the steps before; 0 for the first 16, inf if not finite
    SeriesStats loss_stats = {}, grad_norm_stats = {};
    float lr_factor = 1;  // of the schedule: what learning rates are multiplied by
};
// Fills *control from norm_squared[0], loss[0] (device) and lr_factor, counting up `updates` unless skipped; no other
// kernel of a step has an argument that changes from step to step. clip = 0: no clipping. spike_limit > 0: a step whose
// loss_z or grad_norm_z is above it is skipped. Values that are not finite are not counted in the statistics, and
// outliers as 4 standard deviations, so that neither blinds them and a lasting change is accepted in time.
void step_control(StepControl* control, const float* norm_squared, const float* loss, float lr_factor, float clip,
                  float spike_limit, float beta1, float beta2, const Stream& stream);

// What updates of each element by itself have in common: g = grad * scale of control is a gradient, r = lr * lr_factor
// of control * lr_scale a step's learning rate, and
//   master = master (1 - r weight_decay) - r u; work = master rounded (work may be nullptr)
// for the rule's direction u. Cautious weight decay (arXiv 2510.12402) decays only where u * master >= 0. Nothing
// changes if control says skip. n elements.
struct ElementStep {
    float lr, lr_scale = 1, weight_decay = 0;
    bool cautious = false;
};

}  // namespace teon
