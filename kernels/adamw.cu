// AdamW (Loshchilov & Hutter, arXiv 1711.05101).
#include "kernels/common.h"
#include "kernels/ops.h"

namespace teon {

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock)
    adamw_update_kernel(float* master, T* work, float* m, float* v, const float* grad, const StepControl* control,
                        int64_t n, float peak_lr, float lr_scale, float beta1, float beta2, float eps,
                        float weight_decay) {
    wait_for_earlier_kernels();
    if (control->skip != 0) return;
    const float lr = peak_lr * control->lr_factor * lr_scale;
    const float scale = control->scale, keep = 1.0f - lr * weight_decay;
    const float step = lr / control->bias_correction1;
    const float v_scale = 1.0f / sqrtf(control->bias_correction2);
    for_each_vec<W>(n, [=](auto width, int64_t i) {
        constexpr int w = decltype(width)::value;
        auto p = load_vec<w>(master + i), first = load_vec<w>(m + i), second = load_vec<w>(v + i);
        const auto gradient = load_vec<w>(grad + i);
        FOR_VEC(k, w) {
            const float g = gradient[k] * scale;
            first[k] = fmaf(beta1, first[k], (1.0f - beta1) * g);
            second[k] = fmaf(beta2, second[k], (1.0f - beta2) * g * g);
            p[k] = fmaf(p[k], keep, -step * first[k] / fmaf(sqrtf(second[k]), v_scale, eps));
        }
        store_vec(master + i, p);
        store_vec(m + i, first);
        store_vec(v + i, second);
        if (work != nullptr) store_floats(work + i, p);
    });
}

template <typename T>
void adamw_update(float* master, T* work, float* m, float* v, const float* grad, const StepControl* control, int64_t n,
                  float lr, float lr_scale, float beta1, float beta2, float eps, float weight_decay,
                  const Stream& stream) {
    constexpr int WIDEST = kVecWidth<float>;
    for_flat_width<WIDEST>(
        [&](auto width) {
            constexpr int W = decltype(width)::value;
            launch<adamw_update_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, master, work, m, v, grad,
                                              control, n, lr, lr_scale, beta1, beta2, eps, weight_decay);
        },
        master, work, m, v, grad);
}

template void adamw_update(float*, float*, float*, float*, const float*, const StepControl*, int64_t, float, float,
                           float, float, float, float, const Stream&);
template void adamw_update(float*, bf16*, float*, float*, const float*, const StepControl*, int64_t, float, float,
                           float, float, float, float, const Stream&);

}  // namespace teon
