// Layer normalization (Ba et al., arXiv 1607.06450).
//
// Forward, for each row x of C elements: mean m, variance v = mean (x - m)^2, rstd = 1 / sqrt(v + eps),
// xhat = (x - m) rstd, out = residual + xhat * weight + bias.
//
// Backward: dbias = sum over rows of dout, dweight = sum over rows of dout * xhat. With g = dout * weight = dL/dxhat,
// d xhat_j / d x_i = rstd (delta_ij - 1/C - xhat_i xhat_j / C), so dx = rstd (g - mean(g) - xhat mean(g * xhat)).
#include "kernels/layernorm.h"
#include "kernels/norm.h"

namespace teon {

template <typename T>
void layernorm_forward(T* out, float* mean, float* rstd, const T* residual, const T* x, const T* weight, const T* bias,
                       int N, int C, float eps, const Stream& stream, float* maximum) {
    norm_forward<T, true>(out, mean, rstd, residual, x, weight, bias, N, C, eps, stream, maximum);
}

size_t layernorm_backward_scratch_bytes(int N, int C) { return norm_backward_scratch_bytes(N, C, kNormSums<true>); }

template <typename T>
void layernorm_backward(T* dx, float* dweight, float* dbias, float* dx_sums, void* scratch, const T* dout,
                        const T* dresidual, const T* x, const float* mean, const float* rstd, const T* weight, int N,
                        int C, bool accumulate, const Stream& stream, float* maximum) {
    norm_backward<T, true>(dx, {{{dweight, C}, {dbias, C}, {dx_sums, C}}, accumulate}, scratch, dout, dresidual, x,
                           mean, rstd, weight, N, C, stream, maximum);
}

FOR_STORAGE_TYPES(layernorm_forward);
FOR_STORAGE_TYPES(layernorm_backward);

}  // namespace teon
