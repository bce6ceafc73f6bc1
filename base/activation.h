// GELU (Hendrycks and Gimpel, https://arxiv.org/abs/1606.08415) in its tanh form and in its exact form.
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
    const float bounded_below = x < -9.5f ? -9.5f : x;
    const float y = bounded_below > 9.5f ? 9.5f : bounded_below;
    float v = y * fmaf(kGeluCubic, y * y, kGeluLinear);
    float e = exp_fast(-v);
    float s = div_fast(1.0f, 1.0f + e);
    float dv = fmaf(3.0f * kGeluCubic, y * y, kGeluLinear);
    return fmaf(y * s * (e * s), dv, s);
}

// The exact form: gelu_erf(x) = x P(x), whose derivative is P(x) + x p(x). P is the normal distribution, p its density.
// For x >= 0, P(-x) = e^(-x^2/2) t q(t) with t = 1 / (1 + x/4), and P(x) = 1 - P(-x): no tail cancels. q has a relative
// error below 4e-8; it is a minimax fit on 0 < t <= 1 to the scaled complementary error function.
struct Normal {
    float distribution, density;
};
TEON_D Normal normal(float x) {
    const float z = fabsf(x);
    const float e = exp_fast(-0.5f * z * z);
    const float t = div_fast(1.0f, fmaf(0.25f, z, 1.0f));
    float q = 0.019781971350312233f;
    q = fmaf(q, t, -0.0808771401643753f);
    q = fmaf(q, t, 0.09559677541255951f);
    q = fmaf(q, t, -0.031717218458652496f);
    q = fmaf(q, t, 0.06369893997907639f);
    q = fmaf(q, t, 0.058975204825401306f);
    q = fmaf(q, t, 0.08160309493541718f);
    q = fmaf(q, t, 0.09346635639667511f);
    q = fmaf(q, t, 0.09973642975091934f);
    q = fmaf(q, t, 0.0997355654835701f);
    const float tail = e * t * q;
    return {x < 0.0f ? tail : 1.0f - tail, 0.3989422804014327f * e};  // 1 / sqrt(2 pi)
}

TEON_D float gelu_erf(float x) { return x * normal(x).distribution; }

TEON_D float gelu_erf_grad(float x) {
    const Normal n = normal(x);
    return fmaf(x, n.density, n.distribution);
}

}  // namespace teon
