// GELU in its tanh form; the function and its derivative are in base/activation.h.
#include "base/activation.h"
#include "kernels/activation_backward.h"
#include "kernels/gelu.h"

namespace teon {

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock) gelu_forward_kernel(T* out, const T* x, int64_t n) {
    wait_for_earlier_kernels();
    for_each_vec<W>(n, [=](auto width, int64_t i) {
        constexpr int w = decltype(width)::value;
        auto v = load_floats<w>(x + i);
        FOR_VEC(k, w) v[k] = gelu_tanh(v[k]);
        store_floats(out + i, v);
    });
}

struct Gelu {
    static __device__ __forceinline__ float backward(float x, float dout) { return dout * gelu_tanh_grad(x); }
};

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
void gelu_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                   const Stream& stream) {
    activation_backward<T, Gelu>(dx, dbias, scratch, x, dout, N, C, accumulate, stream);
}

size_t gelu_backward_scratch_bytes(int N, int C) { return activation_backward_scratch_bytes(N, C); }

FOR_STORAGE_TYPES(gelu_forward);
FOR_STORAGE_TYPES(gelu_backward);

}  // namespace teon
