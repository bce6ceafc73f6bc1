// SOAP: Adam in the eigenvectors of the gradients' second moments (Vyas et al., arXiv 2409.11321).
#include "kernels/optimizers/soap.h"

#include <cmath>

#include "kernels/common.h"
#include "kernels/optimizers/weight_update.h"

namespace teon {

namespace {

constexpr int kRowsBlock = 128;  // threads of kernels with a warp per row

__global__ void __launch_bounds__(kFlatBlock)
    soap_momentum_kernel(float* m, const float* grad, int64_t n, int cols, int64_t ld, float scale, float beta1) {
    wait_for_earlier_kernels();
    for_each_vec<1>(n, [=](auto, int64_t i) {
        const float g = grad[i / cols * ld + i % cols] * scale;
        m[i] = fmaf(beta1, m[i], (1.0f - beta1) * g);
    });
}

// One thread per column.
__global__ void __launch_bounds__(kFlatBlock) soap_row_means_kernel(SoapShared shared, const float* g, int n) {
    wait_for_earlier_kernels();
    for_each_vec<1>(n, [=](auto, int64_t j) {
        float sum = 0.0f;
        for (int i = 0; i < shared.rows; ++i) sum = fmaf(g[int64_t{i} * n + j], g[int64_t{i} * n + j], sum);
        shared.row_means[j] = sum / static_cast<float>(shared.rows);
    });
}

// One warp per row.
__global__ void __launch_bounds__(kRowsBlock)
    soap_column_means_kernel(SoapShared shared, const float* g, int m, int n) {
    wait_for_earlier_kernels();
    const int i = static_cast<int>(blockIdx.x * (kRowsBlock / 32) + threadIdx.x / 32);
    if (i >= m) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sum = 0.0f;
    for (int j = lane; j < shared.columns; j += 32) {
        const float x = g[int64_t{i} * n + j];
        sum += i < shared.rows ? shared.row_means[j] : x * x;
    }
    sum = warp_sum(sum);
    if (lane == 0) shared.column_means[i] = sum / static_cast<float>(shared.columns);
}

__global__ void __launch_bounds__(kFlatBlock)
    soap_floor_kernel(float* floor, const float* factor, int side, float share) {
    wait_for_earlier_kernels();
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < side; i += kFlatBlock) sum += factor[int64_t{i} * side + i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *floor = share * sum;
}

__global__ void __launch_bounds__(kFlatBlock)
    soap_direction_kernel(float* out, float* v, const float* g, const float* mo, SoapShared shared, int64_t n, int cols,
                          float scale, float beta2, float m_scale, float eps) {
    wait_for_earlier_kernels();
    const float floor = shared.rows > 0 || shared.columns > 0 ? *shared.floor : 0.0f;
    for_each_vec<1>(n, [=](auto, int64_t e) {
        const int64_t i = e / cols;
        const int64_t j = e % cols;
        const float gradient = g[e] * scale;
        float square = gradient * gradient;
        const bool by_columns = j < shared.columns;
        if (by_columns || i < shared.rows)
            square = scale * scale * (by_columns ? shared.column_means[i] : shared.row_means[j]) + floor;
        const float second = fmaf(beta2, v[e], (1.0f - beta2) * square);
        v[e] = second;
        out[e] = mo[e] * m_scale / (sqrtf(second) + eps);
    });
}

__global__ void __launch_bounds__(kFlatBlock)
    soap_apply_kernel(float* master, bf16* work, const float* u, int64_t n, int cols, int64_t ld, UpdateRate rate,
                      const StepControl* control) {
    wait_for_earlier_kernels();
    const WeightUpdate update = weight_update(rate, control);
    for_each_vec<1>(n, [=](auto, int64_t i) {
        const int64_t at = i / cols * ld + i % cols;
        const float x = master[at];
        const float delta = update.rate * u[i];
        const float updated = (x - delta) * update.decay_factor(x, delta);
        master[at] = updated;
        if (work != nullptr) work[at] = bf16(updated);
    });
}

// One warp per row.
__global__ void __launch_bounds__(kRowsBlock)
    soap_row_products_kernel(float* out, const float* X, const float* Y, int n) {
    wait_for_earlier_kernels();
    const int i = static_cast<int>(blockIdx.x * (kRowsBlock / 32) + threadIdx.x / 32);
    if (i >= n) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t row = int64_t{i} * n;
    float sum = 0.0f;
    for (int j = lane; j < n; j += 32) sum = fmaf(X[row + j], Y[row + j], sum);
    sum = warp_sum(sum);
    if (lane == 0) out[i] = sum;
}

__global__ void __launch_bounds__(kFlatBlock)
    soap_reorder_kernel(float* out, const float* x, const int* order, int64_t n, int cols, bool by_columns) {
    wait_for_earlier_kernels();
    for_each_vec<1>(n, [=](auto, int64_t e) {
        const int64_t i = e / cols;
        const int64_t j = e % cols;
        out[e] = by_columns ? x[i * cols + order[j]] : x[order[i] * static_cast<int64_t>(cols) + j];
    });
}

}  // namespace

void soap_momentum(float* m, const float* grad, int rows, int cols, int64_t ld, float scale, float beta1,
                   const Stream& stream) {
    const int64_t n = int64_t{rows} * cols;
    launch<soap_momentum_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, m, grad, n, cols, ld, scale, beta1);
}

void soap_shared_means(const SoapShared& shared, const float* g, const float* factor, int side, int m, int n,
                       const Stream& stream) {
    if (shared.rows > 0) launch<soap_row_means_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, shared, g, n);
    if (shared.columns > 0)
        launch<soap_column_means_kernel>({ceil_div(m, kRowsBlock / 32), kRowsBlock}, stream, shared, g, m, n);
    const double share = 0x1p-20 / (static_cast<double>(m) * n);
    launch<soap_floor_kernel>({1, kFlatBlock}, stream, shared.floor, factor, side, static_cast<float>(share));
}

void soap_direction(float* out, float* v, const float* g, const float* mo, const SoapShared& shared, int m, int n,
                    const SoapConstants& constants, const Stream& stream) {
    const auto& [scale, beta2, correction1, correction2, eps] = constants;
    const int64_t size = int64_t{m} * n;
    launch<soap_direction_kernel>({flat_blocks<1>(size), kFlatBlock}, stream, out, v, g, mo, shared, size, n, scale,
                                  beta2, std::sqrt(correction2) / correction1, eps);
}

void soap_apply(float* master, bf16* work, const float* u, int rows, int cols, int64_t ld, const UpdateRate& rate,
                const StepControl* control, const Stream& stream) {
    const int64_t n = int64_t{rows} * cols;
    launch<soap_apply_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, master, work, u, n, cols, ld, rate, control);
}

void soap_row_products(float* out, const float* X, const float* Y, int n, const Stream& stream) {
    launch<soap_row_products_kernel>({ceil_div(n, kRowsBlock / 32), kRowsBlock}, stream, out, X, Y, n);
}

void soap_reorder(float* out, const float* x, const int* order, int rows, int cols, bool by_columns,
                  const Stream& stream) {
    const int64_t n = int64_t{rows} * cols;
    launch<soap_reorder_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, out, x, order, n, cols, by_columns);
}

}  // namespace teon
