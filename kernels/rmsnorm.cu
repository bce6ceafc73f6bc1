// Root-mean-square normalization (Zhang & Sennrich, arXiv 1910.07467), fused with the addition of a residual.
//
// Forward, for each row x of C elements: rstd = 1 / sqrt(mean x^2 + eps), xhat = x rstd, out = residual + xhat *
// weight.
//
// Backward: dweight = sum over rows of dout * xhat. With g = dout * weight = dL/dxhat,
// d xhat_j / d x_i = rstd (delta_ij - xhat_i xhat_j / C), so dx = rstd (g - xhat mean(g * xhat)).
#include "kernels/norm.h"
#include "kernels/rmsnorm.h"

namespace teon {

template <typename T>
void rmsnorm_forward(T* out, float* rstd, const T* residual, const T* x, const T* weight, int N, int C, float eps,
                     const Stream& stream, float* maximum) {
    const T* no_bias = nullptr;
    norm_forward<T, false>(out, nullptr, rstd, residual, x, weight, no_bias, N, C, eps, stream, maximum);
}

size_t rmsnorm_backward_scratch_bytes(int N, int C) { return norm_backward_scratch_bytes(N, C, kNormSums<false>); }

template <typename T>
void rmsnorm_backward(T* dx, float* dweight, void* scratch, const T* dout, const T* dresidual, const T* x,
                      const float* rstd, const T* weight, int N, int C, bool accumulate, const Stream& stream,
                      float* maximum) {
    norm_backward<T, false>(dx, {{{dweight, C}}, accumulate}, scratch, dout, dresidual, x, nullptr, rstd, weight, N, C,
                            stream, maximum);
}

FOR_STORAGE_TYPES(rmsnorm_forward);
FOR_STORAGE_TYPES(rmsnorm_backward);

}  // namespace teon
