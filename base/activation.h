// GELU in its tanh form (Hendrycks and Gimpel, https://arxiv.org/abs/1606.08415), for kernels and for the epilogues of
// products on CPUs. A GPU's library has its own GELU, whose last bits differ.
//
//   gelu(x) = x/2 (1 + tanh(v(x)/2)) = x s(v(x)),   v(x) = 2 sqrt(2/pi) (x + 0.044715 x^3),   s(v) = 1 / (1 + e^-v)
//
// The logistic form needs one exponential and has a small relative error also for large negative x, where 1 + tanh
// cancels. Sums of products are explicit calls of fmaf, which leaves the compiler no choice about contraction.
#pragma once

#include <cmath>

#include "base/math.h"

namespace teon {

inline constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = 0.07135481627260025f;  // 0.044715 * 2 sqrt(2/pi)

TEON_D float gelu_tanh(float x) {
    float v = x * fmaf(kGeluCubic, x * x, kGeluLinear);
    return div_fast(x, 1.0f + exp_fast(-v));
}

// d gelu / dx = s + x s (1 - s) dv/dx, where 1 - s = e^-v s does not cancel. For |x| > 9.5 the derivative is 0 or 1 to
// float precision, so x is clamped to +-9.5: the cubic of a large x would overflow and turn 0 * inf into NaN. A NaN
// stays NaN.
TEON_D float gelu_tanh_grad(float x) {
    float y = x < -9.5f ? -9.5f : x > 9.5f ? 9.5f : x;
    float v = y * fmaf(kGeluCubic, y * y, kGeluLinear);
    float e = exp_fast(-v);
    float s = div_fast(1.0f, 1.0f + e);
    float dv = fmaf(3.0f * kGeluCubic, y * y, kGeluLinear);
    return fmaf(y * s * (e * s), dv, s);
}

}  // namespace teon
