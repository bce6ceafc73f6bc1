// The FP8 formats as defined in arXiv 2209.05433, table 1, in double arithmetic.
#pragma once

#include <cmath>
#include <limits>

#include "base/dtype.h"

namespace teon::test {

struct Fp8Format {
    int exponent_bits, mantissa_bits;
    int largest;        // the code of the largest number
    bool has_infinity;  // code largest + 1 is infinity, not NaN; all greater codes are NaN

    double decode(int code) const {
        const double sign = code >= 128 ? -1.0 : 1.0;
        const int a = code & 127;
        const int mantissa = a & ((1 << mantissa_bits) - 1);
        const int exponent = a >> mantissa_bits;
        const int bias = (1 << (exponent_bits - 1)) - 1;
        if (a == largest + 1 && has_infinity) return sign * std::numeric_limits<double>::infinity();
        if (a > largest) return std::numeric_limits<double>::quiet_NaN();
        if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
        return sign * std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
    }
    // Returns the code of the number nearest to x: the even code if two are equally near, the largest number beyond it.
    int round(double x) const {
        if (std::isnan(x)) return 127;
        int below = 0;  // the greatest code with a number of at most |x|
        for (int step = 64; step > 0; step /= 2)
            if (below + step <= largest && decode(below + step) <= std::abs(x)) below += step;
        if (below < largest) {
            const double to_below = std::abs(x) - decode(below);
            const double to_above = decode(below + 1) - std::abs(x);
            if (to_above < to_below || (to_above == to_below && below % 2 == 1)) ++below;
        }
        return below | (std::signbit(x) ? 128 : 0);
    }
};

template <typename F>
inline constexpr Fp8Format kFp8Format = {};
template <>
inline constexpr Fp8Format kFp8Format<e4m3> = {4, 3, 126, false};
template <>
inline constexpr Fp8Format kFp8Format<e5m2> = {5, 2, 123, true};

}  // namespace teon::test
