// The kernels of layernorm (CENTERED) and of rmsnorm, which is layernorm without mean and bias. The derivations are in
// layernorm.cu and rmsnorm.cu. Private to kernels/.
#pragma once

#include "kernels/column_sums.h"
#include "kernels/maximum.h"

namespace teon {

// out = residual + (x - mean) * rstd * weight + bias, for one row. The variance takes a second pass over x, because the
// mean of squares minus the square of the mean cancels if |mean| is much larger than the deviation.
template <typename T, typename Shape, bool CENTERED, bool MAXIMUM>
__global__ void __launch_bounds__(Shape::kBlock)
    norm_forward_kernel(T* out, float* mean, float* rstd, const T* residual, const T* x, const T* weight, const T* bias,
                        int N, int C, float eps, float* maximum) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= N) return;
    out += int64_t{row} * C;
    x += int64_t{row} * C;

    RowCache<T, Shape> cache;
    Vec<float, W> sums{};
    Shape::for_each(C, [&](int slot, int j) {
        const Vec<T, W> v = load_vec<W>(x + j);
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
            const auto v = cache.get(slot, x + j);
            FOR_VEC(k, W) sums[k] += (v[k] - mu) * (v[k] - mu);
        });
        variance = Shape::sum(sums) / count;
    }
    const float scale = 1.0f / sqrtf(variance + eps);
    [[maybe_unused]] int most = 0;
    Shape::for_each(C, [&](int slot, int j) {
        auto v = cache.get(slot, x + j);
        const auto w = load_floats<W>(weight + j);
        Vec<float, W> b{};
        if constexpr (CENTERED) b = load_floats<W>(bias + j);
        FOR_VEC(k, W) v[k] = (v[k] - mu) * scale * w[k] + b[k];
        if (residual != nullptr) {
            const auto r = load_floats<W>(residual + int64_t{row} * C + j);
            FOR_VEC(k, W) v[k] += r[k];
        }
        store_floats(out + j, v);
        if constexpr (MAXIMUM) most = greatest(most, v);
    });
    if constexpr (MAXIMUM) raise_maximum<T>(maximum, most);
    if (Shape::lane() == 0) {
        if constexpr (CENTERED) mean[row] = mu;
        rstd[row] = scale;
    }
}

// The number of quantities that the backward pass sums over rows: dout * xhat, for the weight's gradient; and if
// CENTERED also dout, for the bias's gradient, and dx, for the gradient of a bias that was added to x.
template <bool CENTERED>
inline constexpr int kNormSums = CENTERED ? 3 : 1;
inline constexpr int kNormChunks = 2048, kNormChunkRows = 8;  // at most, at least

// The sums of one worker (the lanes of a RowShape), by kind and column: in registers if they fit beside the held row,
// else in `memory`, where each lane accesses only its own columns.
template <typename Shape, int KINDS>
struct NormSums {
    static constexpr int W = Shape::kWidth;
    static constexpr bool kInRegisters = Shape::kHeld > 0 && Shape::kHeld* W* KINDS <= 96;
    Vec<float, W> held[kInRegisters ? KINDS : 1][kInRegisters ? Shape::kHeld : 1] = {};
    float* memory;
    int C;

    __device__ __forceinline__ NormSums(float* memory, int C) : memory(memory), C(C) {
        if constexpr (!kInRegisters) {
            for (int kind = 0; kind < KINDS; ++kind)
                Shape::for_each(C, [&](int, int j) { store_vec(memory + kind * C + j, Vec<float, W>{}); });
        }
    }
    __device__ __forceinline__ void add(int kind, int slot, int j, const Vec<float, W>& x) {
        if constexpr (kInRegisters) {
            FOR_VEC(k, W) held[kind][slot][k] += x[k];
        } else {
            auto sum = load_vec<W>(memory + kind * C + j);
            FOR_VEC(k, W) sum[k] += x[k];
            store_vec(memory + kind * C + j, sum);
        }
    }
    // Stores the sums to `to`, which may be `memory`.
    __device__ __forceinline__ void store(float* to) const {
        if constexpr (kInRegisters) {
#pragma unroll
            for (int kind = 0; kind < KINDS; ++kind)
                Shape::for_each(C, [&](int slot, int j) { store_vec(to + kind * C + j, held[kind][slot]); });
        } else if (to != memory) {
            for (int kind = 0; kind < KINDS; ++kind)
                Shape::for_each(C,
                                [&](int, int j) { store_vec(to + kind * C + j, load_vec<W>(memory + kind * C + j)); });
        }
    }
};

// Whether the backward kernel finds the maximum of dx as it writes dx. For longer rows this would take more registers
// than there are, and a separate pass costs little beside products of that width.
template <typename Shape>
inline constexpr bool kLeavesMaximum = Shape::kHeld == 4;

// Each worker processes the rows of a chunk one after the other:
// dx = dresidual + rstd * (g - mean of g - xhat * mean of (g xhat)), where g = weight * dout; rmsnorm has no mean of g.
// partial (chunks, kNormSums, C): the sums over the rows of each chunk. Each tensor is read once. The bound of one
// block keeps ptxas from spilling registers of the narrowest shape to make more blocks fit.
template <typename T, typename Shape, bool CENTERED, bool MAXIMUM>
__global__ void __launch_bounds__(Shape::kBlock, Shape::kWidth == 1 ? 1 : 0)
    norm_backward_kernel(T* dx, float* partial, const T* dout, const T* dresidual, const T* x, const float* mean,
                         const float* rstd, const T* weight, int N, int C, int chunk_rows, bool sums_in_shared,
                         float* maximum) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth, KINDS = kNormSums<CENTERED>;
    DYN_SHARED(float, shared);
    const int chunk = Shape::row(), first = chunk * chunk_rows, last = std::min(N, first + chunk_rows);
    if (first >= N) return;
    partial += int64_t{chunk} * KINDS * C;
    const int worker = static_cast<int>(threadIdx.x) / Shape::kLanes;
    NormSums<Shape, KINDS> sums(sums_in_shared ? shared + worker * KINDS * C : partial, C);

    const float count = static_cast<float>(C);
    [[maybe_unused]] int most = 0;
    for (int row = first; row < last; ++row) {
        const int64_t begin = int64_t{row} * C;
        const T *x_row = x + begin, *dout_row = dout + begin;
        const float scale = rstd[row];
        float mu = 0.0f;
        if constexpr (CENTERED) mu = mean[row];

        RowCache<T, Shape> x_cache, dout_cache;
        Vec<float, W> g_sums{}, gx_sums{};
        Shape::for_each(C, [&](int slot, int j) {
            x_cache.keep(slot, load_vec<W>(x_row + j));
            dout_cache.keep(slot, load_vec<W>(dout_row + j));
        });
        Shape::for_each(C, [&](int slot, int j) {
            const auto v = x_cache.get(slot, x_row + j), d = dout_cache.get(slot, dout_row + j);
            const auto w = load_floats<W>(weight + j);
            FOR_VEC(k, W) {
                const float g = d[k] * w[k];
                g_sums[k] += g;
                gx_sums[k] += g * (v[k] - mu);
            }
        });
        float g_mean = 0.0f;
        if constexpr (CENTERED) g_mean = Shape::sum(g_sums) / count;
        const float gx_mean = Shape::sum(gx_sums) * scale / count;
        Shape::for_each(C, [&](int slot, int j) {
            const auto v = x_cache.get(slot, x_row + j), d = dout_cache.get(slot, dout_row + j);
            const auto w = load_floats<W>(weight + j);
            Vec<float, W> result{}, of_weight;
            if (dresidual != nullptr) result = load_floats<W>(dresidual + begin + j);
            FOR_VEC(k, W) {
                const float xhat = (v[k] - mu) * scale;
                of_weight[k] = d[k] * xhat;
                result[k] += scale * (d[k] * w[k] - g_mean - xhat * gx_mean);
            }
            store_floats(dx + begin + j, result);
            if constexpr (MAXIMUM) most = greatest(most, result);
            sums.add(0, slot, j, of_weight);
            if constexpr (CENTERED) sums.add(1, slot, j, d), sums.add(2, slot, j, result);
        });
    }
    sums.store(partial);
    if constexpr (MAXIMUM) raise_maximum<T>(maximum, most);
}

// ---- launchers ----------------------------------------------------------------------------------

template <typename T, bool CENTERED>
void norm_forward(T* out, float* mean, float* rstd, const T* residual, const T* x, const T* weight, const T* bias,
                  int N, int C, float eps, const Stream& stream, float* maximum) {
    for_row_shape<T, true>(
        vec_aligned<T, kVecWidth<T>>(C, out, residual, x, weight, bias), C, [&]<typename Shape>(Shape) {
            with_maximum<T>(maximum, [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
                launch<norm_forward_kernel<T, Shape, CENTERED, MAXIMUM>>({Shape::blocks(N), Shape::kBlock}, stream, out,
                                                                         mean, rstd, residual, x, weight, bias, N, C,
                                                                         eps, maximum);
            });
        });
}

inline size_t norm_backward_scratch_bytes(int N, int C, int kinds) {
    return chunk_sums_bytes(N, kNormChunks, kNormChunkRows, kinds * C);
}

// grads has kNormSums kinds.
template <typename T, bool CENTERED>
void norm_backward(T* dx, const ColumnGrads& grads, void* scratch, const T* dout, const T* dresidual, const T* x,
                   const float* mean, const float* rstd, const T* weight, int N, int C, const Stream& stream,
                   float* maximum) {
    const RowChunks chunks = row_chunks(N, kNormChunks, kNormChunkRows);
    float* partial = static_cast<float*>(scratch);
    for_row_shape<T, true>(
        vec_aligned<T, kVecWidth<T>>(C, dx, partial, dout, dresidual, x, weight), C, [&]<typename Shape>(Shape) {
            using Sums = NormSums<Shape, kNormSums<CENTERED>>;
            constexpr size_t kMostShared = 96 << 10;  // two blocks on a multiprocessor
            const size_t bytes = sizeof(float) * Shape::kRowsPerBlock * kNormSums<CENTERED> * static_cast<size_t>(C);
            const bool in_shared = !Sums::kInRegisters && Shape::kLanes > 1 && bytes <= kMostShared;
            with_maximum<T>(maximum, [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
                launch<norm_backward_kernel<T, Shape, CENTERED, MAXIMUM && kLeavesMaximum<Shape>>>(
                    {Shape::blocks(chunks.count), Shape::kBlock, in_shared ? bytes : 0}, stream, dx, partial, dout,
                    dresidual, x, mean, rstd, weight, N, C, chunks.rows, in_shared, maximum);
                if (MAXIMUM && !kLeavesMaximum<Shape>) find_maximum(maximum, dx, int64_t{N} * C, stream);
            });
        });
    add_column_sums(grads, partial, chunks.count, stream);
}

}  // namespace teon
