// SwiGLU (Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202): out = silu(gate) * up, silu(g) = g s(g), with
// s the logistic function. Backward: dup = dout g s, dgate = dout up s (1 + g (1 - s)).
#include "base/math.h"
#include "kernels/maximum.h"
#include "kernels/swiglu.h"

namespace teon {

template <typename T, typename Shape, bool MAXIMUM>
__global__ void __launch_bounds__(Shape::kBlock)
    swiglu_forward_kernel(T* out, const T* gate_up, int N, int F, float* maximum) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= N) return;
    out += int64_t{row} * F;
    const T* gate = gate_up + int64_t{row} * 2 * F;
    const T* up = gate + F;
    [[maybe_unused]] int most = 0;
    Shape::for_each(F, [=, &most](int, int j) {
        auto g = load_floats<W>(gate + j);
        auto u = load_floats<W>(up + j);
        FOR_VEC(k, W) g[k] = div_fast(g[k], 1.0f + exp_fast(-g[k])) * u[k];
        store_floats(out + j, g);
        if constexpr (MAXIMUM) most = greatest(most, g);
    });
    if constexpr (MAXIMUM) raise_maximum<T>(maximum, most);
}

template <typename T, typename Shape, bool MAXIMUM>
__global__ void __launch_bounds__(Shape::kBlock)
    swiglu_backward_kernel(T* dgate_up, const T* gate_up, const T* dout, int N, int F, float* maximum) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= N) return;
    const T* gate = gate_up + int64_t{row} * 2 * F;
    T* dgate = dgate_up + int64_t{row} * 2 * F;
    dout += int64_t{row} * F;
    [[maybe_unused]] int most = 0;
    Shape::for_each(F, [=, &most](int, int j) {
        auto g = load_floats<W>(gate + j);
        auto u = load_floats<W>(gate + F + j);
        auto d = load_floats<W>(dout + j);
        Vec<float, W> dg;
        Vec<float, W> du;
        FOR_VEC(k, W) {
            float s = div_fast(1.0f, 1.0f + exp_fast(-g[k]));
            du[k] = d[k] * g[k] * s;
            dg[k] = d[k] * u[k] * s * fmaf(g[k], 1.0f - s, 1.0f);
        }
        store_floats(dgate + j, dg);
        store_floats(dgate + F + j, du);
        if constexpr (MAXIMUM) most = greatest(greatest(most, dg), du);
    });
    if constexpr (MAXIMUM) raise_maximum<T>(maximum, most);
}

template <typename T>
void swiglu_forward(T* out, const T* gate_up, int N, int F, const Stream& stream, float* maximum) {
    for_row_shape<T, false>(vec_aligned<T, kVecWidth<T>>(F, out, gate_up), F, [&]<typename Shape>(Shape) {
        with_maximum<T>(maximum, [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
            launch<swiglu_forward_kernel<T, Shape, MAXIMUM>>({Shape::blocks(N), Shape::kBlock}, stream, out, gate_up, N,
                                                             F, maximum);
        });
    });
}

template <typename T>
void swiglu_backward(T* dgate_up, const T* gate_up, const T* dout, int N, int F, const Stream& stream, float* maximum) {
    for_row_shape<T, false>(vec_aligned<T, kVecWidth<T>>(F, dgate_up, gate_up, dout), F, [&]<typename Shape>(Shape) {
        with_maximum<T>(maximum, [&]<bool MAXIMUM>(std::bool_constant<MAXIMUM>) {
            launch<swiglu_backward_kernel<T, Shape, MAXIMUM>>({Shape::blocks(N), Shape::kBlock}, stream, dgate_up,
                                                              gate_up, dout, N, F, maximum);
        });
    });
}

FOR_STORAGE_TYPES(swiglu_forward);
FOR_STORAGE_TYPES(swiglu_backward);

}  // namespace teon
