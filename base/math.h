// Fast exp, exp2 and division for kernels. CUDA code uses the GPU's instructions. The host uses branch-free
// polynomials, which g++ vectorizes in a loop over a Vec.
#pragma once

#include "base/dtype.h"

namespace teon {

#if defined(__CUDACC__)

// Results and reciprocals below 2^-126 are 0: keeping them would cost three more instructions.
__device__ __forceinline__ float exp2_fast(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
__device__ __forceinline__ float exp_fast(float x) { return exp2_fast(x * 1.44269504f); }
// x / y within 2 ulp for |y| in [2^-126, 2^126], 0 for larger y; the exact division takes ten instructions.
__device__ __forceinline__ float div_fast(float x, float y) {
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(y));
    return x * y;
}

#else

namespace detail {

// (e^r - 1) / r for |r| <= ln(2)/2, relative error of e^r below 2^-26: interpolated at Chebyshev nodes, with the first
// two coefficients rounded to Taylor's.
TEON_HD float expm1_over_r(float r) {
    float q = 0.00139336858f;
    q = __builtin_fmaf(q, r, 0.0083691841f);
    q = __builtin_fmaf(q, r, 0.041666463f);
    q = __builtin_fmaf(q, r, 0.166665047f);
    q = __builtin_fmaf(q, r, 0.5f);
    return __builtin_fmaf(q, r, 1.0f);
}

// 1.5 * 2^23. Adding it rounds to an integer, which the low bits of the sum then hold.
inline constexpr float kRound = 12582912.0f;

// Returns p * 2^n for p in [1/2, 2], where the low bits of `sum` hold n, if the result is normal.
TEON_HD float scale(float p, float sum) { return bits_float(float_bits(p) + (float_bits(sum) << 23)); }

// Returns y, but 0 for x below `low`, infinity for x above `high`, and NaN for NaN.
TEON_HD float within(float y, float x, float low, float high) {
    const float above_low = x < low ? 0.0f : y;
    return x <= high ? above_low : x + __builtin_huge_valf();
}

// ln(2) as the sum of two parts; n times the first part is exact for |n| < 2^15.
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
inline constexpr float kLog2E = 1.44269504f;

}  // namespace detail

// e^x within 1 ulp; 0 if the result is subnormal (x < -87.33654), inf for x > 88.72283, NaN for NaN.
TEON_HD float exp_fast(float x) {
    using namespace detail;
    const float sum = __builtin_fmaf(x, kLog2E, kRound);
    const float n = sum - kRound;
    const float r = __builtin_fmaf(n, -kLn2Low, __builtin_fmaf(n, -kLn2High, x));
    return within(scale(__builtin_fmaf(r, expm1_over_r(r), 1.0f), sum), x, -87.33654f, 88.72283f);
}

// 2^x within 2 ulp; 0 if the result is subnormal, inf for x >= 128, NaN for NaN.
TEON_HD float exp2_fast(float x) {
    using namespace detail;
    const float sum = x + kRound;
    const float n = sum - kRound;
    const float r = (x - n) * 0.693147181f;
    return within(scale(__builtin_fmaf(r, expm1_over_r(r), 1.0f), sum), x, -126.0f, 127.99999f);
}

TEON_HD float div_fast(float x, float y) { return x / y; }

#endif

}  // namespace teon
