// SOAP: Adam in the eigenvectors of the gradients' second moments (Vyas et al., arXiv 2409.11321).
#include "kernels/soap.h"

#include <cmath>

#include "kernels/common.h"

namespace teon {

namespace {

__global__ void __launch_bounds__(kFlatBlock)
    soap_momentum_kernel(float* m, const float* grad, int64_t n, int cols, int64_t ld, float scale, float beta1) {
    wait_for_earlier_kernels();
    for_each_vec<1>(n, [=](auto, int64_t i) {
        const float g = grad[i / cols * ld + i % cols] * scale;
        m[i] = fmaf(beta1, m[i], (1.0f - beta1) * g);
    });
}

__global__ void __launch_bounds__(kFlatBlock)
    soap_direction_kernel(float* out, float* v, const float* g, const float* m, int64_t n, float scale, float beta2,
                          float m_scale, float v_scale, float eps) {
    wait_for_earlier_kernels();
    for_each_vec<1>(n, [=](auto, int64_t i) {
        const float gradient = g[i] * scale;
        const float second = v[i] = fmaf(beta2, v[i], (1.0f - beta2) * gradient * gradient);
        out[i] = m[i] * m_scale / fmaf(sqrtf(second), v_scale, eps);
    });
}

__global__ void __launch_bounds__(kFlatBlock)
    soap_apply_kernel(float* master, bf16* work, const float* u, int64_t n, int cols, int64_t ld, float step,
                      float keep, float against) {
    wait_for_earlier_kernels();
    for_each_vec<1>(n, [=](auto, int64_t i) {
        const int64_t at = i / cols * ld + i % cols;
        const float x = master[at], delta = step * u[i];
        const float updated = fmaf(x, kept(x, delta, keep, against), -delta);
        master[at] = updated;
        if (work != nullptr) work[at] = bf16(updated);
    });
}

}  // namespace

void soap_momentum(float* m, const float* grad, int rows, int cols, int64_t ld, float scale, float beta1,
                   const Stream& stream) {
    const int64_t n = int64_t{rows} * cols;
    launch<soap_momentum_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, m, grad, n, cols, ld, scale, beta1);
}

void soap_direction(float* out, float* v, const float* g, const float* m, int64_t n, float scale, float beta2,
                    float correction1, float correction2, float eps, const Stream& stream) {
    launch<soap_direction_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, out, v, g, m, n, scale, beta2,
                                  1.0f / correction1, 1.0f / std::sqrt(correction2), eps);
}

void soap_apply(float* master, bf16* work, const float* u, int rows, int cols, int64_t ld, float step, float keep,
                bool cautious, const Stream& stream) {
    const int64_t n = int64_t{rows} * cols;
    launch<soap_apply_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, master, work, u, n, cols, ld, step, keep,
                              cautious ? 1.0f : keep);
}

}  // namespace teon
