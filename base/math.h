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
inline constexpr uint32_t kRoundBits = 0x4b400000u;

// Returns p * 2^n, where n = float_bits(sum) - kRoundBits is an integer and -252 <= n <= 254. Two exact powers of two
// are multiplied one after the other, so that the product overflows and underflows correctly.
TEON_HD float scale(float p, float sum) {
    const int32_t n = static_cast<int32_t>(float_bits(sum) - kRoundBits);
    const int32_t half = n >> 1;
    const float first = bits_float(static_cast<uint32_t>(half + 127) << 23);
    const float second = bits_float(static_cast<uint32_t>(n - half + 127) << 23);
    return p * first * second;
}

// Clamp x, but keep NaN.
TEON_HD float at_least(float x, float low) { return x < low ? low : x; }
TEON_HD float at_most(float x, float high) { return x > high ? high : x; }

// ln(2) as the sum of two parts; n times the first part is exact for |n| < 2^15.
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
inline constexpr float kLog2E = 1.44269504f;

}  // namespace detail

// e^x within 2 ulp if the result is normal; 0 for -inf, inf for x > 88.73, NaN for NaN.
TEON_HD float exp_fast(float x) {
    using namespace detail;
    x = at_most(at_least(x, -104.0f), 89.0f);  // beyond these the result is 0 or inf
    const float sum = __builtin_fmaf(x, kLog2E, kRound);
    const float n = sum - kRound;
    const float r = __builtin_fmaf(n, -kLn2Low, __builtin_fmaf(n, -kLn2High, x));
    return scale(__builtin_fmaf(r, expm1_over_r(r), 1.0f), sum);
}

// 2^x with the same accuracy.
TEON_HD float exp2_fast(float x) {
    using namespace detail;
    x = at_most(at_least(x, -151.0f), 129.0f);
    const float sum = x + kRound;
    const float n = sum - kRound;
    const float r = (x - n) * 0.693147181f;
    return scale(__builtin_fmaf(r, expm1_over_r(r), 1.0f), sum);
}

TEON_HD float div_fast(float x, float y) { return x / y; }

#endif

}  // namespace teon
