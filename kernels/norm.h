// The kernels of layernorm (CENTERED) and rmsnorm, which is layernorm without mean and bias. Private to kernels/; the
// derivations are in layernorm.cu and rmsnorm.cu.
#pragma once

#include "kernels/common.h"
#include "runtime/integer.h"

namespace teon {

// One row: r = x + branch (stored as T), out = (r - mean) * rstd * weight + bias. Two passes over r for the variance:
// the sum of squares minus the square of the sum would cancel where |mean| is much larger than the deviation.
template <typename T, typename Shape, bool CENTERED>
__global__ void __launch_bounds__(Shape::kBlock)
    norm_forward_kernel(T* out, T* residual, float* mean, float* rstd, const T* x, const T* branch, const T* weight,
                        const T* bias, int N, int C, float eps) {
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= N) return;
    const int64_t begin = int64_t{row} * C;
    out += begin;
    x += begin;
    const T* r = x;
    if (branch != nullptr) r = residual + begin;

    RowCache<T, Shape> cache;
    Vec<float, W> sums{};
    Shape::for_each(C, [&](int slot, int j) {
        Vec<T, W> v = load_vec<W>(x + j);
        if (branch != nullptr) {
            const Vec<T, W> b = load_vec<W>(branch + begin + j);
            FOR_VEC(k, W) v[k] = static_cast<T>(static_cast<float>(v[k]) + static_cast<float>(b[k]));
            store_vec(residual + begin + j, v);
        }
        cache.keep(slot, v);
        FOR_VEC(k, W) {
            const float f = static_cast<float>(v[k]);
            sums[k] += CENTERED ? f : f * f;
        }
    });
    const float count = static_cast<float>(C);
    float mu = 0.0f, variance = Shape::sum(sums) / count;
    if constexpr (CENTERED) {
        mu = variance;
        sums = {};
        Shape::for_each(C, [&](int slot, int j) {
            const auto v = cache.get(slot, r + j);
            FOR_VEC(k, W) sums[k] += (v[k] - mu) * (v[k] - mu);
        });
        variance = Shape::sum(sums) / count;
    }
    const float scale = 1.0f / sqrtf(variance + eps);
    Shape::for_each(C, [&](int slot, int j) {
        auto v = cache.get(slot, r + j);
        const auto w = load_floats<W>(weight + j);
        Vec<float, W> b{};
        if constexpr (CENTERED) b = load_floats<W>(bias + j);
        FOR_VEC(k, W) v[k] = (v[k] - mu) * scale * w[k] + b[k];
        store_floats(out + j, v);
    });
    if (Shape::lane() == 0) {
        if constexpr (CENTERED) mean[row] = mu;
        rstd[row] = scale;
    }
}

// One row of dx = dresidual + rstd * (g - mean of g - xhat * mean of (g xhat)), where g = weight * dout; rmsnorm has no
// mean of g.
template <typename T, typename Shape, bool CENTERED>
__global__ void __launch_bounds__(Shape::kBlock)
    norm_backward_kernel(T* dx, const T* dout, const T* dresidual, const T* x, const float* mean, const float* rstd,
                         const T* weight, int N, int C) {
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= N) return;
    const int64_t begin = int64_t{row} * C;
    dx += begin;
    dout += begin;
    x += begin;
    const float scale = rstd[row];
    float mu = 0.0f;
    if constexpr (CENTERED) mu = mean[row];

    RowCache<T, Shape> x_cache, dout_cache;
    Vec<float, W> g_sums{}, gx_sums{};
    Shape::for_each(C, [&](int slot, int j) {
        x_cache.keep(slot, load_vec<W>(x + j));
        dout_cache.keep(slot, load_vec<W>(dout + j));
        const auto v = x_cache.get(slot, x + j), d = dout_cache.get(slot, dout + j), w = load_floats<W>(weight + j);
        FOR_VEC(k, W) {
            const float g = d[k] * w[k];
            g_sums[k] += g;
            gx_sums[k] += g * (v[k] - mu);
        }
    });
    const float count = static_cast<float>(C);
    float g_mean = 0.0f;
    if constexpr (CENTERED) g_mean = Shape::sum(g_sums) / count;
    const float gx_mean = Shape::sum(gx_sums) * scale / count;
    Shape::for_each(C, [&](int slot, int j) {
        const auto v = x_cache.get(slot, x + j), d = dout_cache.get(slot, dout + j), w = load_floats<W>(weight + j);
        Vec<float, W> result{};
        if (dresidual != nullptr) result = load_floats<W>(dresidual + begin + j);
        FOR_VEC(k, W) {
            const float xhat = (v[k] - mu) * scale;
            result[k] += scale * (d[k] * w[k] - g_mean - xhat * gx_mean);
        }
        store_floats(dx + j, result);
    });
}

// The gradients of weight and bias are sums over rows. They are taken in two stages: chunks of rows, each by one thread
// per vector of columns, then the chunks. The number of chunks depends on N alone.
inline int norm_chunk_rows(int N) { return std::max(32, ceil_div(N, 256)); }
inline int norm_chunks(int N) { return (N + norm_chunk_rows(N) - 1) / norm_chunk_rows(N); }

// partial (chunks, C), or (chunks, 2, C) if CENTERED: dout * xhat, then dout, each summed over the rows of the chunk.
template <typename T, int W, bool CENTERED>
__global__ void __launch_bounds__(kFlatBlock)
    norm_partial_weight_grad_kernel(float* partial, const T* dout, const T* x, const float* mean, const float* rstd,
                                    int N, int C, int chunk_rows, int chunks) {
    const int vecs = C / W;
    const int64_t item = int64_t{blockIdx.x} * kFlatBlock + threadIdx.x;
    if (item >= int64_t{chunks} * vecs) return;
    const int chunk = static_cast<int>(item / vecs), j = static_cast<int>(item % vecs) * W;
    const int first = chunk * chunk_rows, last = std::min(N, first + chunk_rows);
    Vec<float, W> weight_sums{}, bias_sums{};
#pragma unroll 4
    for (int row = first; row < last; row++) {
        const auto d = load_floats<W>(dout + int64_t{row} * C + j), v = load_floats<W>(x + int64_t{row} * C + j);
        const float scale = rstd[row];
        float mu = 0.0f;
        if constexpr (CENTERED) mu = mean[row];
        FOR_VEC(k, W) {
            weight_sums[k] += d[k] * ((v[k] - mu) * scale);
            if constexpr (CENTERED) bias_sums[k] += d[k];
        }
    }
    partial += int64_t{chunk} * (CENTERED ? 2 : 1) * C + j;
    store_vec(partial, weight_sums);
    if constexpr (CENTERED) store_vec(partial + C, bias_sums);
}

// weight_grad (C) and bias_grad (C, only if CENTERED) += the column sums of partial. A thread has W columns; PARTS
// warps share the chunks and are added in their order.
template <int W, int PARTS, bool CENTERED>
__global__ void __launch_bounds__(32 * PARTS)
    norm_weight_grad_kernel(float* weight_grad, float* bias_grad, const float* partial, int chunks, int C) {
    const int lane = static_cast<int>(threadIdx.x) % 32, part = static_cast<int>(threadIdx.x) / 32;
    const int columns = CENTERED ? 2 * C : C;
    const int column = (static_cast<int>(blockIdx.x) * 32 + lane) * W;
    Vec<float, W> sums{};
    if (column < columns) {
#pragma unroll 4
        for (int chunk = part; chunk < chunks; chunk += PARTS) {
            const auto p = load_vec<W>(partial + int64_t{chunk} * columns + column);
            FOR_VEC(k, W) sums[k] += p[k];
        }
    }
    if constexpr (PARTS > 1) {
        SHARED(float, shared, 32 * PARTS * W);
        store_vec(shared + threadIdx.x * W, sums);
        __syncthreads();
        if (part > 0) return;
        for (int p = 1; p < PARTS; p++) { FOR_VEC(k, W) sums[k] += shared[(p * 32 + lane) * W + k]; }
    }
    if (column >= columns) return;
    float* grad = column < C ? weight_grad + column : bias_grad + (column - C);
    auto total = load_vec<W>(grad);
    FOR_VEC(k, W) total[k] += sums[k];
    store_vec(grad, total);
}

// ---- launchers ----------------------------------------------------------------------------------

template <typename T, bool CENTERED>
void norm_forward(T* out, T* residual, float* mean, float* rstd, const T* x, const T* branch, const T* weight,
                  const T* bias, int N, int C, float eps, const Stream& stream) {
    CHECK(branch == nullptr || residual != nullptr, "norm: a branch is added, so the residual needs a place to go");
    for_row_shape<T, true>(
        C, C,
        [&](auto shape) {
            using Shape = decltype(shape);
            launch<norm_forward_kernel<T, Shape, CENTERED>>({Shape::blocks(N), Shape::kBlock}, stream, out, residual,
                                                            mean, rstd, x, branch, weight, bias, N, C, eps);
        },
        out, residual, x, branch, weight, bias);
}

inline size_t norm_backward_scratch_bytes(int N, int C, bool centered) {
    return sizeof(float) * static_cast<size_t>(norm_chunks(N)) * static_cast<size_t>(C) * (centered ? 2 : 1);
}

// weight_grad and bias_grad += the column sums of partial, as norm_weight_grad_kernel has them, at width W or less.
template <int W, bool CENTERED>
void norm_add_weight_grad(float* weight_grad, float* bias_grad, const float* partial, int chunks, int C,
                          const Stream& stream) {
    auto add_up = [&](auto sum_width, auto parts) {
        constexpr int SUM_W = decltype(sum_width)::value, PARTS = decltype(parts)::value;
        const int columns = CENTERED ? 2 * C : C, per_block = 32 * SUM_W;
        launch<norm_weight_grad_kernel<SUM_W, PARTS, CENTERED>>({ceil_div(columns, per_block), 32 * PARTS}, stream,
                                                                weight_grad, bias_grad, partial, chunks, C);
    };
    if constexpr (kRowAlone > 0) {
        if (C <= kRowAlone) return add_up(std::integral_constant<int, W>{}, std::integral_constant<int, 1>{});
    }
    add_up(std::integral_constant<int, 1>{}, std::integral_constant<int, 16>{});
}

template <typename T, bool CENTERED>
void norm_backward(T* dx, float* dweight, float* dbias, void* scratch, const T* dout, const T* dresidual, const T* x,
                   const float* mean, const float* rstd, const T* weight, int N, int C, const Stream& stream) {
    // First what reads dout and x as a whole: dx may be one of them.
    float* partial = static_cast<float*>(scratch);
    const int chunks = norm_chunks(N);
    auto at_width = [&](auto width) {
        constexpr int W = decltype(width)::value;
        const int64_t items = int64_t{chunks} * (C / W);
        launch<norm_partial_weight_grad_kernel<T, W, CENTERED>>({ceil_div(items, kFlatBlock), kFlatBlock}, stream,
                                                                partial, dout, x, mean, rstd, N, C, norm_chunk_rows(N),
                                                                chunks);
        norm_add_weight_grad<W, CENTERED>(dweight, dbias, partial, chunks, C, stream);
    };
    if (vec_aligned<T, kVecWidth<T>>(C, partial, dweight, dbias, dout, x)) {
        at_width(std::integral_constant<int, kVecWidth<T>>{});
    } else {
        at_width(std::integral_constant<int, 1>{});
    }
    for_row_shape<T, true>(
        C, C,
        [&](auto shape) {
            using Shape = decltype(shape);
            launch<norm_backward_kernel<T, Shape, CENTERED>>({Shape::blocks(N), Shape::kBlock}, stream, dx, dout,
                                                             dresidual, x, mean, rstd, weight, N, C);
        },
        dx, dout, dresidual, x, weight);
}

}  // namespace teon
