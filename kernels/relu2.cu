// Squared ReLU (So et al., "Primer", arXiv 2109.08668): out = max(x, 0)^2, whose derivative is 2 max(x, 0).
#include "kernels/activation_backward.h"
#include "kernels/relu2.h"

namespace teon {

// x, or 0 where it is negative; NaN stays NaN.
static __device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock) relu2_forward_kernel(T* out, const T* x, int64_t n) {
    wait_for_earlier_kernels();
    for_each_vec<W>(n, [=](auto width, int64_t i) {
        constexpr int w = decltype(width)::value;
        auto v = load_floats<w>(x + i);
        FOR_VEC(k, w) v[k] = relu(v[k]) * relu(v[k]);
        store_floats(out + i, v);
    });
}

struct Relu2 {
    static __device__ __forceinline__ float backward(float x, float dout) { return dout * 2.0f * relu(x); }
};

template <typename T>
void relu2_forward(T* out, const T* x, int64_t n, const Stream& stream) {
    for_flat_width<kVecWidth<T>>(
        [&](auto width) {
            constexpr int W = decltype(width)::value;
            launch<relu2_forward_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, out, x, n);
        },
        out, x);
}

template <typename T>
void relu2_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                    const Stream& stream) {
    activation_backward<T, Relu2>(dx, dbias, scratch, x, dout, N, C, accumulate, stream);
}

size_t relu2_backward_scratch_bytes(int N, int C) { return activation_backward_scratch_bytes(N, C); }

FOR_STORAGE_TYPES(relu2_forward);
FOR_STORAGE_TYPES(relu2_backward);

}  // namespace teon
