// GELU in its tanh form and in its exact form; the functions and their derivatives are in base/activation.h.
#include "base/activation.h"
#include "kernels/activation.h"
#include "kernels/gelu.h"

namespace teon {

struct Gelu {
    static __device__ __forceinline__ float forward(float x) { return gelu_tanh(x); }
    static __device__ __forceinline__ float backward(float x, float dout) { return dout * gelu_tanh_grad(x); }
};

template <typename T>
void gelu_forward(T* out, const T* x, int64_t n, const Stream& stream, float* maximum) {
    activation_forward<Gelu>(out, x, n, stream, maximum);
}

template <typename T>
void gelu_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                   const Stream& stream, float* maximum) {
    activation_backward<Gelu>(dx, dbias, scratch, x, dout, N, C, accumulate, stream, maximum);
}

size_t gelu_backward_scratch_bytes(int N, int C) { return activation_backward_scratch_bytes(N, C); }

struct GeluErf {
    static __device__ __forceinline__ float forward(float x) { return gelu_erf(x); }
    static __device__ __forceinline__ float backward(float x, float dout) { return dout * gelu_erf_grad(x); }
};

template <typename T>
void gelu_erf_forward(T* out, const T* x, int64_t n, const Stream& stream, float* maximum) {
    activation_forward<GeluErf>(out, x, n, stream, maximum);
}

template <typename T>
void gelu_erf_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                       const Stream& stream, float* maximum) {
    activation_backward<GeluErf>(dx, dbias, scratch, x, dout, N, C, accumulate, stream, maximum);
}

size_t gelu_erf_backward_scratch_bytes(int N, int C) { return activation_backward_scratch_bytes(N, C); }

FOR_STORAGE_TYPES(gelu_forward);
FOR_STORAGE_TYPES(gelu_backward);
FOR_STORAGE_TYPES(gelu_erf_forward);
FOR_STORAGE_TYPES(gelu_erf_backward);

}  // namespace teon
