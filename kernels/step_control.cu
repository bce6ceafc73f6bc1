// Decides on the device whether a step is applied and how its gradient is clipped, and keeps the statistics of loss and
// gradient norm that detect spikes.
#include <cmath>

#include "kernels/step_control.h"
#include "runtime/simt.h"

namespace teon {

// Adds x to the series and returns its distance from the mean of the values before it, in their standard deviations.
__device__ float count_in(SeriesStats& s, float x) {
    constexpr int kUnjudgedValues = 16;  // the first ones
    constexpr int kMemory = 128;
    constexpr float kOutlier = 4.0f;         // standard deviations
    constexpr float kLargestChange = 1e15f;  // its square is still a float
    // A thousandth of the mean is the smallest deviation, because a series may be constant.
    const float deviation = fmaxf(fmaxf(sqrtf(s.variance), 1e-3f * fabsf(s.mean)), 1e-30f);
    const bool is_judged = s.count >= kUnjudgedValues;
    const float limit = is_judged ? kOutlier * deviation : kLargestChange;
    const float change = fminf(fmaxf(x - s.mean, -limit), limit);
    const float z = is_judged ? (x - s.mean) / deviation : 0.0f;
    if (s.count < kMemory) ++s.count;
    const float weight = 1.0f / static_cast<float>(s.count);
    s.mean += weight * change;
    s.variance = (1.0f - weight) * (s.variance + weight * change * change);
    return z;
}

__global__ void step_control_kernel(StepControl* control, const float* norm_squared, const float* loss, float lr_factor,
                                    float clip, float spike_limit, float beta1, float beta2) {
    wait_for_earlier_kernels();
    if (threadIdx.x > 0) return;
    StepControl c = *control;
    c.lr_factor = lr_factor;
    c.grad_norm = sqrtf(norm_squared[0]);
    c.skip = 0;
    if (std::isfinite(c.grad_norm) && std::isfinite(loss[0])) {
        c.loss_z = count_in(c.loss_stats, loss[0]);
        c.grad_norm_z = count_in(c.grad_norm_stats, c.grad_norm);
        if (spike_limit > 0.0f && fmaxf(c.loss_z, c.grad_norm_z) > spike_limit) c.skip = kSkipSpike;
    } else {
        c.loss_z = INFINITY;
        c.grad_norm_z = INFINITY;
        c.skip = kSkipNonfinite;
    }
    c.skipped_in_row = c.skip != 0 ? c.skipped_in_row + 1 : 0;
    c.scale = 0.0f;
    if (c.skip == 0) {
        c.scale = clip > 0.0f && c.grad_norm > clip ? clip / c.grad_norm : 1.0f;
        const int t = ++c.updates;
        // In double, because 1 - beta^t cancels while t is small.
        c.bias_correction1 = static_cast<float>(1.0 - pow(static_cast<double>(beta1), t));
        c.bias_correction2 = static_cast<float>(1.0 - pow(static_cast<double>(beta2), t));
    }
    *control = c;
}

void step_control(StepControl* control, const float* norm_squared, const float* loss, float lr_factor, float clip,
                  float spike_limit, float beta1, float beta2, const Stream& stream) {
    launch<step_control_kernel>({1, 32}, stream, control, norm_squared, loss, lr_factor, clip, spike_limit, beta1,
                                beta2);
}

}  // namespace teon
