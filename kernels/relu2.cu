// Squared ReLU (So et al., "Primer", arXiv 2109.08668): out = max(x, 0)^2, whose derivative is 2 max(x, 0).
#include "kernels/activation.h"
#include "kernels/relu2.h"

namespace teon {

struct Relu2 {
    // x, or 0 if x is negative. NaN stays NaN.
    static __device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }
    static __device__ __forceinline__ float forward(float x) { return relu(x) * relu(x); }
    static __device__ __forceinline__ float backward(float x, float dout) { return dout * 2.0f * relu(x); }
};

template <typename T>
void relu2_forward(T* out, const T* x, int64_t n, const Stream& stream, float* maximum) {
    activation_forward<Relu2>(out, x, n, stream, maximum);
}

template <typename T>
void relu2_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                    const Stream& stream, float* maximum) {
    activation_backward<Relu2>(dx, dbias, scratch, x, dout, N, C, accumulate, stream, maximum);
}

size_t relu2_backward_scratch_bytes(int N, int C) { return activation_backward_scratch_bytes(N, C); }

FOR_STORAGE_TYPES(relu2_forward);
FOR_STORAGE_TYPES(relu2_backward);

}  // namespace teon
