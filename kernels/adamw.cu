// AdamW and the decision, taken on the device, whether and how strongly a step is applied.
#include <cmath>

#include "kernels/common.h"
#include "kernels/ops.h"

namespace teon {

// Counts x in and returns its distance from the mean of the values before it, in their standard deviations.
__device__ float count_in(SeriesStats& s, float x) {
    constexpr int FIRST = 16, MEMORY = 128;             // no judgement before FIRST values
    constexpr float OUTLIER = 4.0f, HUGE_STEP = 1e15f;  // its square is still a float
    // A series may be constant: then a thousandth of it counts as one deviation.
    const float deviation = fmaxf(fmaxf(sqrtf(s.variance), 1e-3f * fabsf(s.mean)), 1e-30f);
    const bool judged = s.count >= FIRST;
    const float limit = judged ? OUTLIER * deviation : HUGE_STEP;
    const float step = fminf(fmaxf(x - s.mean, -limit), limit);
    const float z = judged ? (x - s.mean) / deviation : 0.0f;
    if (s.count < MEMORY) s.count++;
    const float weight = 1.0f / static_cast<float>(s.count);
    s.mean += weight * step;
    s.variance = (1.0f - weight) * (s.variance + weight * step * step);
    return z;
}

__global__ void step_control_kernel(StepControl* control, const float* norm_squared, const float* loss, float clip,
                                    float spike_limit, float beta1, float beta2) {
    if (threadIdx.x > 0) return;
    StepControl c = *control;
    c.grad_norm = sqrtf(norm_squared[0]);
    c.skip = 0;
    if (std::isfinite(c.grad_norm) && std::isfinite(loss[0])) {
        c.loss_z = count_in(c.loss_stats, loss[0]);
        c.grad_norm_z = count_in(c.grad_norm_stats, c.grad_norm);
        if (spike_limit > 0.0f && fmaxf(c.loss_z, c.grad_norm_z) > spike_limit) c.skip = kSkipSpike;
    } else {
        c.loss_z = c.grad_norm_z = INFINITY;
        c.skip = kSkipNonfinite;
    }
    c.skipped_in_row = c.skip != 0 ? c.skipped_in_row + 1 : 0;
    c.scale = c.skip != 0 ? 0.0f : clip > 0.0f && c.grad_norm > clip ? clip / c.grad_norm : 1.0f;
    if (c.skip == 0) {
        const int t = ++c.updates;
        // In double: 1 - beta^t cancels while t is small.
        c.bias_correction1 = static_cast<float>(1.0 - pow(static_cast<double>(beta1), t));
        c.bias_correction2 = static_cast<float>(1.0 - pow(static_cast<double>(beta2), t));
    }
    *control = c;
}

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock)
    adamw_update_kernel(float* master, T* work, float* m, float* v, const float* grad, const StepControl* control,
                        int64_t n, float lr, float beta1, float beta2, float eps, float weight_decay) {
    if (control->skip != 0) return;
    const float scale = control->scale, keep = 1.0f - lr * weight_decay;
    const float step = lr / control->bias_correction1;
    const float v_scale = 1.0f / sqrtf(control->bias_correction2);
    for_each_vec<W>(n, [=](auto width, int64_t i) {
        constexpr int w = decltype(width)::value;
        auto p = load_vec<w>(master + i), first = load_vec<w>(m + i), second = load_vec<w>(v + i);
        const auto gradient = load_vec<w>(grad + i);
        FOR_VEC(k, w) {
            const float g = gradient[k] * scale;
            first[k] = beta1 * first[k] + (1.0f - beta1) * g;
            second[k] = beta2 * second[k] + (1.0f - beta2) * g * g;
            p[k] = p[k] * keep - step * first[k] / (sqrtf(second[k]) * v_scale + eps);
        }
        store_vec(master + i, p);
        store_vec(m + i, first);
        store_vec(v + i, second);
        if (work != nullptr) store_floats(work + i, p);
    });
}

void step_control(StepControl* control, const float* norm_squared, const float* loss, float clip, float spike_limit,
                  float beta1, float beta2, const Stream& stream) {
    launch<step_control_kernel>({1, 32}, stream, control, norm_squared, loss, clip, spike_limit, beta1, beta2);
}

template <typename T>
void adamw_update(float* master, T* work, float* m, float* v, const float* grad, const StepControl* control, int64_t n,
                  float lr, float beta1, float beta2, float eps, float weight_decay, const Stream& stream) {
    constexpr int WIDEST = kVecWidth<float>;
    for_flat_width<WIDEST>(
        [&](auto width) {
            constexpr int W = decltype(width)::value;
            launch<adamw_update_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, master, work, m, v, grad,
                                              control, n, lr, beta1, beta2, eps, weight_decay);
        },
        master, work, m, v, grad);
}

template void adamw_update(float*, float*, float*, float*, const float*, const StepControl*, int64_t, float, float,
                           float, float, float, const Stream&);
template void adamw_update(float*, bf16*, float*, float*, const float*, const StepControl*, int64_t, float, float,
                           float, float, float, const Stream&);

}  // namespace teon
