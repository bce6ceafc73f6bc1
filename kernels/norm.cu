// LayerNorm (Ba et al., arXiv 1607.06450) and RMSNorm (Zhang & Sennrich, arXiv 1910.07467), which is LayerNorm without
// mean and bias.
//
// Forward, for each row x of C elements: mean m, variance v = mean (x - m)^2, rstd = 1 / sqrt(v + eps),
// xhat = (x - m) rstd, out = residual + xhat * weight + bias.
//
// Backward: dbias = sum over rows of dout, dweight = sum over rows of dout * xhat. With g = dout * weight = dL/dxhat,
// d xhat_j / d x_i = rstd (delta_ij - 1/C - xhat_i xhat_j / C), so dx = rstd (g - mean(g) - xhat mean(g * xhat)).
// Without the mean m, 1/C and mean(g) are absent.
#include "kernels/norm.h"

#include <type_traits>

#include "kernels/column_sums.h"
#include "kernels/maximum.h"
#include "runtime/tensor_cores/tensor_core.h"

namespace teon {

// ---- formulas -----------------------------------------------------------------------------------
//
// gain(weight) multiplies xhat. Its derivative is 1.

struct LayerNorm {
    static constexpr bool kCentered = true;
    static __device__ __forceinline__ float gain(float weight) { return weight; }
};

struct RmsNorm {
    static constexpr bool kCentered = false;
    static __device__ __forceinline__ float gain(float weight) { return weight; }
};

template <NormKind KIND>
struct FormulaOfNorm;  // a kind without a formula does not compile
template <>
struct FormulaOfNorm<NormKind::layernorm> : std::type_identity<LayerNorm> {};
template <>
struct FormulaOfNorm<NormKind::rmsnorm> : std::type_identity<RmsNorm> {};

// ---- kernels ------------------------------------------------------------------------------------

// out = residual + (x - mean) * rstd * weight + bias, for one row. The variance takes a second pass over x, because the
// mean of squares minus the square of the mean cancels if |mean| is much larger than the deviation.
template <typename T, typename Shape, typename Norm, bool MAXIMUM>
__global__ void __launch_bounds__(Shape::kBlock) norm_forward_kernel(NormForward<T> a) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    const int C = a.C;
    if (row >= a.N) return;
    T* const out = a.out + int64_t{row} * C;
    const T* const x = a.x + int64_t{row} * C;
    const T* const residual = a.residual;

    RowCache<T, Shape> cache;
    Vec<float, W> sums{};
    Shape::for_each(C, [&](int slot, int j) { cache.keep(slot, x + j); });
    Shape::for_each(C, [&](int slot, int j) {
        const auto v = cache.get(slot, x + j);
        FOR_VEC(k, W) sums[k] += Norm::kCentered ? v[k] : v[k] * v[k];
    });
    const float count = static_cast<float>(C);
    float mu = 0.0f;
    float variance = Shape::sum(sums) / count;
    if constexpr (Norm::kCentered) {
        mu = variance;
        sums = {};
        Shape::for_each(C, [&](int slot, int j) {
            const auto v = cache.get(slot, x + j);
            FOR_VEC(k, W) sums[k] += (v[k] - mu) * (v[k] - mu);
        });
        variance = Shape::sum(sums) / count;
    }
    const float scale = 1.0f / sqrtf(variance + a.eps);
    [[maybe_unused]] int maximum_bits = 0;
    Shape::for_each(C, [&](int slot, int j) {
        auto v = cache.get(slot, x + j);
        const auto w = load_floats<W>(a.weight + j);
        Vec<float, W> b{};
        if constexpr (Norm::kCentered) b = load_floats<W>(a.bias + j);
        FOR_VEC(k, W) v[k] = (v[k] - mu) * scale * Norm::gain(w[k]) + b[k];
        if (residual != nullptr) {
            const auto r = load_floats<W>(residual + int64_t{row} * C + j);
            FOR_VEC(k, W) v[k] += r[k];
        }
        store_floats(out + j, v);
        if constexpr (MAXIMUM) maximum_bits = greatest(maximum_bits, v);
    });
    if constexpr (MAXIMUM) raise_maximum<T>(a.maximum, maximum_bits);
    if (Shape::lane() == 0) {
        if constexpr (Norm::kCentered) a.mean[row] = mu;
        a.rstd[row] = scale;
    }
}

// The number of quantities that the backward pass sums over rows: dout * xhat, for the weight's gradient; and if
// centered also dout, for the bias's gradient, and dx, for the gradient of a bias that was added to x.
constexpr int norm_sums(bool centered) { return centered ? 3 : 1; }
constexpr int kNormChunks = 2048;  // at most
constexpr int kNormChunkRows = 8;  // at least

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
inline constexpr bool kFusesMaximum = Shape::kHeld == 4;

// The rows of x, dout and dresidual that one worker of the backward kernel reads, below row `last`. If AHEAD, each row
// is copied to shared memory while the worker processes the row before, so that loads are always in flight: with rows
// of 1.5 KiB (C = 768) and 8 workers, 36 KiB on each of 132 multiprocessors, where 4.8 TB/s at 700 ns take 25.
// Registers, which hold the sums, have no room for another row. A lane reads only what it copied itself, so there is no
// barrier.
template <typename T, typename Shape, typename Norm, bool AHEAD>
struct NormRows {
    static constexpr int kRow = Shape::kHeld * Shape::kLanes * Shape::kWidth;  // elements, with padding
    static constexpr size_t kBytes = AHEAD ? sizeof(T) * 2 * 3 * kRow : 0;     // two rows of three tensors
    const NormBackward<T>& a;
    int last;
    T* memory;
    // The row that is processed.
    const T* x = nullptr;
    const T* dout = nullptr;
    const T* dresidual = nullptr;
    float mean = 0.0f;
    float rstd = 0.0f;
    float next_mean = 0.0f;
    float next_rstd = 0.0f;

    __device__ __forceinline__ T* copy_of(int row) const { return memory + row % 2 * 3 * kRow; }
    __device__ __forceinline__ void fetch(int row) {
        const int64_t begin = int64_t{row} * a.C;
        if (row < last) {
            if constexpr (Norm::kCentered) next_mean = a.mean[row];
            next_rstd = a.rstd[row];
        }
        if constexpr (AHEAD) {
            Shape::for_each(kRow, [&](int, int j) {  // no branches: copies 0 to what is beyond the row
                const bool exists = row < last && j < a.C;
                T* const to = copy_of(row) + j;
                cp_async<16>(to, a.x + begin + j, exists);
                cp_async<16>(to + kRow, a.dout + begin + j, exists);
                cp_async<16>(to + 2 * kRow, a.dresidual + begin + j, exists && a.dresidual != nullptr);
            });
            cp_async_commit();
        }
    }
    // Makes `row` the row that is processed, and fetches the next.
    __device__ __forceinline__ void advance_to(int row) {
        mean = next_mean;
        rstd = next_rstd;
        fetch(row + 1);
        const int64_t begin = int64_t{row} * a.C;
        if constexpr (AHEAD) cp_async_wait<1>();
        x = AHEAD ? copy_of(row) : a.x + begin;
        dout = AHEAD ? x + kRow : a.dout + begin;
        dresidual = AHEAD ? dout + kRow : a.dresidual + begin;
    }
};

template <typename T, typename Shape, typename Norm>
struct NormBackwardParts {
    using Sums = NormSums<Shape, norm_sums(Norm::kCentered)>;
    static constexpr bool kAhead = Sums::kInRegisters && sizeof(T) * Shape::kWidth == 16;
    using Rows = NormRows<T, Shape, Norm, kAhead>;
    using Cache = RowCache<T, Shape, !kAhead && (Shape::kHeld > 0)>;
    // The bound of one block keeps ptxas from spilling registers to make more blocks fit.
    static constexpr int kBlocks = kAhead || Shape::kWidth == 1 ? 1 : 0;
    // The registers with all sums would let three blocks run on a multiprocessor, but 2,048 workers on 132 of them are
    // 1.3 rounds of twelve workers and 2 of eight: this much shared memory leaves room for two blocks.
    static constexpr size_t kLeastBytes = kAhead && Norm::kCentered ? 80 << 10 : 0;
};

// The means over a row of g = dout * weight, which only LayerNorm needs, and of g xhat.
struct NormMeans {
    float g, gx;
};
template <typename Shape, typename Norm, typename Rows, typename Cache>
__device__ __forceinline__ NormMeans norm_means(const Rows& rows, const Cache& x_cache, const Cache& dout_cache) {
    constexpr int W = Shape::kWidth;
    const int C = rows.a.C;
    Vec<float, W> g_sums{};
    Vec<float, W> gx_sums{};
    Shape::for_each(C, [&](int slot, int j) {
        const auto v = x_cache.get(slot, rows.x + j);
        const auto d = dout_cache.get(slot, rows.dout + j);
        const auto w = load_floats<W>(rows.a.weight + j);
        FOR_VEC(k, W) {
            const float g = d[k] * Norm::gain(w[k]);
            g_sums[k] += g;
            gx_sums[k] += g * (v[k] - rows.mean);
        }
    });
    const float count = static_cast<float>(C);
    float g_sum = 0.0f;
    if constexpr (Norm::kCentered) g_sum = Shape::sum(g_sums);
    const float gx_sum = Shape::sum(gx_sums);  // before the division, whose branch keeps the two sums apart
    return {Norm::kCentered ? g_sum / count : 0.0f, gx_sum * rows.rstd / count};
}

// Each worker processes the rows of a chunk one after the other:
// dx = dresidual + rstd * (g - mean of g - xhat * mean of (g xhat)), where g = weight * dout; RmsNorm has no mean of g.
// partial (chunks, norm_sums, C): the sums over the rows of each chunk. Each tensor is read once.
template <typename T, typename Shape, typename Norm, bool MAXIMUM>
__global__ void __launch_bounds__(Shape::kBlock, NormBackwardParts<T, Shape, Norm>::kBlocks)
    norm_backward_kernel(NormBackward<T> a, float* partial, int chunk_rows, bool sums_in_shared) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    constexpr int kKinds = norm_sums(Norm::kCentered);
    using Parts = NormBackwardParts<T, Shape, Norm>;
    DYN_SHARED(float, shared);
    const int C = a.C;
    const int chunk = Shape::row();
    const int first = chunk * chunk_rows;
    const int last = std::min(a.N, first + chunk_rows);
    if (first >= a.N) return;
    partial += int64_t{chunk} * kKinds * C;
    const int worker = static_cast<int>(threadIdx.x) / Shape::kLanes;
    typename Parts::Sums sums(sums_in_shared ? shared + worker * kKinds * C : partial, C);
    typename Parts::Rows rows{a, last, reinterpret_cast<T*>(shared) + worker * (Parts::Rows::kBytes / sizeof(T))};

    [[maybe_unused]] int maximum_bits = 0;
    rows.fetch(first);
    for (int row = first; row < last; ++row) {
        rows.advance_to(row);
        T* const dx = a.dx + int64_t{row} * C;
        typename Parts::Cache x_cache;
        typename Parts::Cache dout_cache;
        Shape::for_each(C, [&](int slot, int j) {
            x_cache.keep(slot, rows.x + j);
            dout_cache.keep(slot, rows.dout + j);
        });
        const NormMeans mean = norm_means<Shape, Norm>(rows, x_cache, dout_cache);
        Shape::for_each(C, [&](int slot, int j) {
            const auto v = x_cache.get(slot, rows.x + j);
            const auto d = dout_cache.get(slot, rows.dout + j);
            const auto w = load_floats<W>(a.weight + j);
            Vec<float, W> result{};
            Vec<float, W> of_weight;
            if (Parts::kAhead || a.dresidual != nullptr) result = load_floats<W>(rows.dresidual + j);
            FOR_VEC(k, W) {
                const float xhat = (v[k] - rows.mean) * rows.rstd;
                of_weight[k] = d[k] * xhat;
                result[k] += rows.rstd * (d[k] * Norm::gain(w[k]) - mean.g - xhat * mean.gx);
            }
            store_floats(dx + j, result);
            if constexpr (MAXIMUM) maximum_bits = greatest(maximum_bits, result);
            sums.add(0, slot, j, of_weight);
            if constexpr (Norm::kCentered) {
                sums.add(1, slot, j, d);
                sums.add(2, slot, j, result);
            }
        });
    }
    sums.store(partial);
    if constexpr (MAXIMUM) raise_maximum<T>(a.maximum, maximum_bits);
}

// ---- launchers ----------------------------------------------------------------------------------

// Calls f(formula) with the formula of `kind`.
template <typename F>
static void with_formula(NormKind kind, F f) {
    with_constant(kind, [&]<NormKind KIND>(EnumConstant<KIND>) {
        using Norm = typename FormulaOfNorm<KIND>::type;
        static_assert(Norm::kCentered == row_of(KIND).centered);
        f(Norm());
    });
}

template <typename T>
void norm_forward(NormKind kind, const NormForward<T>& a, const Stream& stream) {
    const bool aligned = vec_aligned<T, kVecWidth<T>>(a.C, a.out, a.residual, a.x, a.weight, a.bias);
    const int64_t size = int64_t{a.N} * a.C;
    with_formula(kind, [&]<typename Norm>(Norm) {
        for_row_shape<T, RowUse::held>(aligned, a.C, [&]<typename Shape>(Shape) {
            with_maximum(a.maximum, a.out, size, stream, [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
                launch<norm_forward_kernel<T, Shape, Norm, MAXIMUM>>({Shape::blocks(a.N), Shape::kBlock}, stream, a);
            });
        });
    });
}

size_t norm_backward_scratch_bytes(NormKind kind, int N, int C) {
    return chunk_sums_bytes(N, kNormChunks, kNormChunkRows, norm_sums(row_of(kind).centered) * C);
}

template <typename T>
void norm_backward(NormKind kind, const NormBackward<T>& a, const Stream& stream) {
    const RowChunks chunks = row_chunks(a.N, kNormChunks, kNormChunkRows);
    float* const partial = static_cast<float*>(a.scratch);
    const bool aligned = vec_aligned<T, kVecWidth<T>>(a.C, a.dx, partial, a.dout, a.dresidual, a.x, a.weight);
    with_formula(kind, [&]<typename Norm>(Norm) {
        constexpr int kSums = norm_sums(Norm::kCentered);
        for_row_shape<T, RowUse::held>(aligned, a.C, [&]<typename Shape>(Shape) {
            constexpr size_t kSharedLimit = 96 << 10;  // two blocks on a multiprocessor
            using Parts = NormBackwardParts<T, Shape, Norm>;
            const size_t sums_bytes = sizeof(float) * Shape::kRowsPerBlock * kSums * static_cast<size_t>(a.C);
            const bool in_shared = !Parts::Sums::kInRegisters && Shape::kLanes > 1 && sums_bytes <= kSharedLimit;
            const size_t rows_bytes = std::max(Parts::kLeastBytes, Shape::kRowsPerBlock * Parts::Rows::kBytes);
            const size_t bytes = in_shared ? sums_bytes : rows_bytes;
            static_assert(Shape::kRowsPerBlock * Parts::Rows::kBytes <= kSharedLimit);
            const auto start = [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
                launch<norm_backward_kernel<T, Shape, Norm, MAXIMUM>>(
                    {Shape::blocks(chunks.count), Shape::kBlock, bytes}, stream, a, partial, chunks.rows, in_shared);
            };
            with_maximum<T, kFusesMaximum<Shape>>(a.maximum, a.dx, int64_t{a.N} * a.C, stream, start);
        });
        ColumnGrads grads = {{{a.dweight, a.C}}, a.accumulate};
        if constexpr (Norm::kCentered) grads = {{{a.dweight, a.C}, {a.dbias, a.C}, {a.dx_sums, a.C}}, a.accumulate};
        add_column_sums(grads, partial, chunks.count, stream);
    });
}

FOR_STORAGE_TYPES(norm_forward);
FOR_STORAGE_TYPES(norm_backward);

}  // namespace teon
