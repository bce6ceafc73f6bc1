// GELU in its tanh form; the function itself and its derivative are in runtime/activation.h, shared with the GEMM
// epilogue, so that recomputing the activation from the stored input gives the bits of the fused one.
#include "kernels/common.h"
#include "kernels/ops.h"
#include "runtime/activation.h"

namespace teon {

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock) gelu_forward_kernel(T* out, const T* x, int64_t n) {
    for_each_vec<W>(n, [=](auto width, int64_t i) {
        constexpr int w = decltype(width)::value;
        auto v = load_floats<w>(x + i);
        FOR_VEC(k, w) v[k] = gelu_tanh(v[k]);
        store_floats(out + i, v);
    });
}

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock) gelu_backward_kernel(T* dx, const T* x, const T* dout, int64_t n) {
    for_each_vec<W>(n, [=](auto width, int64_t i) {
        constexpr int w = decltype(width)::value;
        auto v = load_floats<w>(x + i), d = load_floats<w>(dout + i);
        FOR_VEC(k, w) v[k] = d[k] * gelu_tanh_grad(v[k]);
        store_floats(dx + i, v);
    });
}

template <typename T>
void gelu_forward(T* out, const T* x, int64_t n, const Stream& stream) {
    for_flat_width<kVecWidth<T>>(
        [&](auto width) {
            constexpr int W = decltype(width)::value;
            launch<gelu_forward_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, out, x, n);
        },
        out, x);
}

template <typename T>
void gelu_backward(T* dx, const T* x, const T* dout, int64_t n, const Stream& stream) {
    for_flat_width<kVecWidth<T>>(
        [&](auto width) {
            constexpr int W = decltype(width)::value;
            launch<gelu_backward_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, dx, x, dout, n);
        },
        dx, x, dout);
}

template void gelu_forward(float*, const float*, int64_t, const Stream&);
template void gelu_forward(bf16*, const bf16*, int64_t, const Stream&);
template void gelu_backward(float*, const float*, const float*, int64_t, const Stream&);
template void gelu_backward(bf16*, const bf16*, const bf16*, int64_t, const Stream&);

}  // namespace teon
