// The formulas of the activation functions, and the kernels that apply them: without a gate, to a flat tensor, and the
// backward pass also computes the gradient of the bias that was added to x, so that the tensor is read once for both;
// with a gate, row by row.
#include "kernels/activation.h"

#include <type_traits>

#include "base/activation.h"
#include "base/math.h"
#include "kernels/column_sums.h"
#include "kernels/maximum.h"

namespace teon {

// ---- formulas -----------------------------------------------------------------------------------
//
// Without a gate: forward(x) and backward(x, dout), the gradient of x. GELU's functions are in base/activation.h.

struct Gelu {
    static constexpr bool kGated = false;
    static __device__ __forceinline__ float forward(float x) { return gelu_tanh(x); }
    static __device__ __forceinline__ float backward(float x, float dout) { return dout * gelu_tanh_grad(x); }
};

struct GeluErf {
    static constexpr bool kGated = false;
    static __device__ __forceinline__ float forward(float x) { return gelu_erf(x); }
    static __device__ __forceinline__ float backward(float x, float dout) { return dout * gelu_erf_grad(x); }
};

// Squared ReLU (So et al., "Primer", arXiv 2109.08668): max(x, 0)^2, whose derivative is 2 max(x, 0).
struct Relu2 {
    static constexpr bool kGated = false;
    // x, or 0 if x is negative. NaN stays NaN.
    static __device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }
    static __device__ __forceinline__ float forward(float x) { return relu(x) * relu(x); }
    static __device__ __forceinline__ float backward(float x, float dout) { return dout * 2.0f * relu(x); }
};

// With a gate: forward(gate, up) and backward(gate, up, dout), the gradients of both.
struct GateGradients {
    float gate, up;
};

// silu(gate) * up with silu(g) = g s(g), s the logistic function: dup = dout g s, dgate = dout up s (1 + g (1 - s)).
struct Swiglu {
    static constexpr bool kGated = true;
    static __device__ __forceinline__ float forward(float gate, float up) {
        return div_fast(gate, 1.0f + exp_fast(-gate)) * up;
    }
    static __device__ __forceinline__ GateGradients backward(float gate, float up, float dout) {
        const float s = div_fast(1.0f, 1.0f + exp_fast(-gate));
        return {dout * up * s * fmaf(gate, 1.0f - s, 1.0f), dout * gate * s};
    }
};

// F(gate) * up.
template <typename F>
struct Gated {
    static constexpr bool kGated = true;
    static __device__ __forceinline__ float forward(float gate, float up) { return F::forward(gate) * up; }
    static __device__ __forceinline__ GateGradients backward(float gate, float up, float dout) {
        return {F::backward(gate, dout * up), dout * F::forward(gate)};
    }
};

template <ActivationKind KIND>
struct FormulaOf;  // a kind without a formula does not compile
template <>
struct FormulaOf<ActivationKind::gelu> : std::type_identity<Gelu> {};
template <>
struct FormulaOf<ActivationKind::gelu_erf> : std::type_identity<GeluErf> {};
template <>
struct FormulaOf<ActivationKind::relu2> : std::type_identity<Relu2> {};
template <>
struct FormulaOf<ActivationKind::swiglu> : std::type_identity<Swiglu> {};
template <>
struct FormulaOf<ActivationKind::geglu> : std::type_identity<Gated<Gelu>> {};
template <>
struct FormulaOf<ActivationKind::geglu_erf> : std::type_identity<Gated<GeluErf>> {};

// ---- without a gate -----------------------------------------------------------------------------

template <typename T, int W, typename F, bool MAXIMUM>
__global__ void __launch_bounds__(kFlatBlock) activation_forward_kernel(T* out, const T* x, int64_t n, float* maximum) {
    wait_for_earlier_kernels();
    [[maybe_unused]] int maximum_bits = 0;
    for_each_vec<W>(n, [=, &maximum_bits]<int w>(Constant<w>, int64_t i) {
        auto v = load_floats<w>(x + i);
        FOR_VEC(k, w) v[k] = F::forward(v[k]);
        store_floats(out + i, v);
        if constexpr (MAXIMUM) maximum_bits = greatest(maximum_bits, v);
    });
    if constexpr (MAXIMUM) raise_maximum<T>(maximum, maximum_bits);
}

constexpr int kActivationChunks = 1024;  // at most
constexpr int kActivationChunkRows = 8;  // at least
constexpr int kBackwardBlock = kRowsByThread ? 32 : kFlatBlock;

// dx = F::backward(x, dout); partial (chunks, C) = the sums of dx over the rows of each chunk. On a GPU a thread
// processes W columns of one chunk and reads kRows rows before it writes the first, because dx may alias dout. On a CPU
// a thread processes a whole chunk row by row, so that it reads memory in order, and its sums stay in the first-level
// cache. The order of sums is the same.
template <typename T, int W, typename F, bool MAXIMUM>
__global__ void __launch_bounds__(kBackwardBlock)
    activation_backward_kernel(T* dx, float* partial, const T* x, const T* dout, int N, int C, RowChunks chunks,
                               float* maximum) {
    wait_for_earlier_kernels();
    constexpr int kRows = kRowsByThread ? 1 : 4;
    const int items = kRowsByThread ? 1 : C / W;  // of a chunk
    const int64_t item = int64_t{blockIdx.x} * kBackwardBlock + threadIdx.x;
    const int chunk = static_cast<int>(item / items);
    const int first = chunk * chunks.rows;
    const int last = std::min(N, first + chunks.rows);  // empty beyond the last chunk
    [[maybe_unused]] int maximum_bits = 0;
    auto rows = [&]<int R>(Constant<R>, int row, int j, Vec<float, W>& sums) {
        Vec<T, W> v[R];
        Vec<T, W> d[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            v[r] = load_vec<W>(x + int64_t{row + r} * C + j);
            d[r] = load_vec<W>(dout + int64_t{row + r} * C + j);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            // Before the loop, which g++ vectorizes only without these loads.
            const auto inputs = load_floats<W>(v[r].v);
            const auto gradients = load_floats<W>(d[r].v);
            Vec<float, W> y;
            FOR_VEC(k, W) y[k] = F::backward(inputs[k], gradients[k]);
            FOR_VEC(k, W) sums[k] += y[k];
            store_floats(dx + int64_t{row + r} * C + j, y);
            if constexpr (MAXIMUM) maximum_bits = greatest(maximum_bits, y);
        }
    };
    if constexpr (kRowsByThread) {
        float* const to = partial + int64_t{chunk} * C;
        for (int row = first; row < last; ++row)
            for (int j = 0; j < C; j += W) {
                Vec<float, W> sums{};
                if (row > first) sums = load_vec<W>(to + j);
                rows(Constant<1>{}, row, j, sums);
                store_vec(to + j, sums);
            }
    } else {
        const int j = static_cast<int>(item % items) * W;
        Vec<float, W> sums{};
        int row = first;
        for (; row + kRows <= last; row += kRows) rows(Constant<kRows>{}, row, j, sums);
        for (; row < last; ++row) rows(Constant<1>{}, row, j, sums);
        if (chunk < chunks.count) store_vec(partial + int64_t{chunk} * C + j, sums);
    }
    if constexpr (MAXIMUM) raise_maximum<T>(maximum, maximum_bits);
}

// ---- with a gate --------------------------------------------------------------------------------

template <typename T, typename Shape, typename F, bool MAXIMUM>
__global__ void __launch_bounds__(Shape::kBlock)
    gated_forward_kernel(T* out, const T* gate_up, int N, int width, float* maximum) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= N) return;
    out += int64_t{row} * width;
    const T* gate = gate_up + int64_t{row} * 2 * width;
    const T* up = gate + width;
    [[maybe_unused]] int maximum_bits = 0;
    Shape::for_each(width, [=, &maximum_bits](int, int j) {
        auto g = load_floats<W>(gate + j);
        auto u = load_floats<W>(up + j);
        FOR_VEC(k, W) g[k] = F::forward(g[k], u[k]);
        store_floats(out + j, g);
        if constexpr (MAXIMUM) maximum_bits = greatest(maximum_bits, g);
    });
    if constexpr (MAXIMUM) raise_maximum<T>(maximum, maximum_bits);
}

template <typename T, typename Shape, typename F, bool MAXIMUM>
__global__ void __launch_bounds__(Shape::kBlock)
    gated_backward_kernel(T* dgate_up, const T* gate_up, const T* dout, int N, int width, float* maximum) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= N) return;
    const T* gate = gate_up + int64_t{row} * 2 * width;
    T* dgate = dgate_up + int64_t{row} * 2 * width;
    dout += int64_t{row} * width;
    [[maybe_unused]] int maximum_bits = 0;
    Shape::for_each(width, [=, &maximum_bits](int, int j) {
        auto g = load_floats<W>(gate + j);
        auto u = load_floats<W>(gate + width + j);
        auto d = load_floats<W>(dout + j);
        Vec<float, W> dg;
        Vec<float, W> du;
        FOR_VEC(k, W) {
            const GateGradients gradients = F::backward(g[k], u[k], d[k]);
            dg[k] = gradients.gate;
            du[k] = gradients.up;
        }
        store_floats(dgate + j, dg);
        store_floats(dgate + width + j, du);
        if constexpr (MAXIMUM) maximum_bits = greatest(greatest(maximum_bits, dg), du);
    });
    if constexpr (MAXIMUM) raise_maximum<T>(maximum, maximum_bits);
}

// ---- launchers ----------------------------------------------------------------------------------

// Calls f(formula) with the formula of `kind`.
template <typename F>
static void with_formula(ActivationKind kind, F f) {
    with_constant(kind, [&]<ActivationKind KIND>(EnumConstant<KIND>) {
        using Formula = typename FormulaOf<KIND>::type;
        static_assert(Formula::kGated == row_of(KIND).gated);
        f(Formula());
    });
}

template <typename T>
void activation_forward(ActivationKind kind, T* out, const T* x, int N, int F, const Stream& stream, float* maximum) {
    constexpr int kWidth = kVecWidth<T>;
    with_formula(kind, [&]<typename Formula>(Formula) {
        with_maximum(maximum, out, int64_t{N} * F, stream, [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
            if constexpr (Formula::kGated) {
                for_row_shape<T, RowUse::elements>(vec_aligned<T, kWidth>(F, out, x), F, [&]<typename Shape>(Shape) {
                    launch<gated_forward_kernel<T, Shape, Formula, MAXIMUM>>({Shape::blocks(N), Shape::kBlock}, stream,
                                                                             out, x, N, F, maximum);
                });
            } else {
                at_width<kWidth>(vec_aligned<T, kWidth>(0, out, x), [&]<int W>(Constant<W>) {
                    const int64_t n = int64_t{N} * F;
                    launch<activation_forward_kernel<T, W, Formula, MAXIMUM>>({flat_blocks<W>(n), kFlatBlock}, stream,
                                                                              out, x, n, maximum);
                });
            }
        });
    });
}

size_t activation_backward_scratch_bytes(ActivationKind kind, int N, int F) {
    return row_of(kind).gated ? 0 : chunk_sums_bytes(N, kActivationChunks, kActivationChunkRows, F);
}

template <typename T>
void activation_backward(ActivationKind kind, T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N,
                         int F, bool accumulate, const Stream& stream, float* maximum) {
    constexpr int kWidth = kVecWidth<T>;
    with_formula(kind, [&]<typename Formula>(Formula) {
        if constexpr (Formula::kGated) {
            CHECK(dbias == nullptr, "activation_backward: {} has no bias gradient", row_of(kind).name);
            for_row_shape<T, RowUse::elements>(vec_aligned<T, kWidth>(F, dx, x, dout), F, [&]<typename Shape>(Shape) {
                with_maximum(maximum, dx, int64_t{2} * N * F, stream, [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
                    launch<gated_backward_kernel<T, Shape, Formula, MAXIMUM>>({Shape::blocks(N), Shape::kBlock}, stream,
                                                                              dx, x, dout, N, F, maximum);
                });
            });
        } else {
            const RowChunks chunks = row_chunks(N, kActivationChunks, kActivationChunkRows);
            float* partial = static_cast<float*>(scratch);
            at_width<kWidth>(vec_aligned<T, kWidth>(F, dx, partial, x, dout), [&]<int W>(Constant<W>) {
                with_maximum(maximum, dx, int64_t{N} * F, stream, [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
                    const int64_t items = int64_t{chunks.count} * (kRowsByThread ? 1 : F / W);
                    launch<activation_backward_kernel<T, W, Formula, MAXIMUM>>(
                        {ceil_div(items, kBackwardBlock), kBackwardBlock}, stream, dx, partial, x, dout, N, F, chunks,
                        maximum);
                });
            });
            if (dbias != nullptr) add_column_sums({{{dbias, F}}, accumulate}, partial, chunks.count, stream);
        }
    });
}

FOR_STORAGE_TYPES(activation_forward);
FOR_STORAGE_TYPES(activation_backward);

}  // namespace teon
