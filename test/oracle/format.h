// The storage types' binary formats, from their definitions, in double arithmetic. FP8: arXiv 2209.05433, table 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dtype.h"

namespace teon::test {

struct Format {
    int exponent_bits, mantissa_bits;
    int largest;        // the code of the largest number
    bool has_infinity;  // code largest + 1 is infinity, not NaN; all greater codes are NaN
    bool saturates;     // numbers beyond the largest become the largest, not infinity

    int sign() const { return 1 << (exponent_bits + mantissa_bits); }                // the code of -0
    int smallest() const { return 2 - (1 << (exponent_bits - 1)) - mantissa_bits; }  // exponent of the smallest number

    double decode(int code) const {
        const double sign_of_code = code >= sign() ? -1.0 : 1.0;
        const int a = code & (sign() - 1);
        const int mantissa = a & ((1 << mantissa_bits) - 1);
        const int exponent = a >> mantissa_bits;
        if (a == largest + 1 && has_infinity) return sign_of_code * std::numeric_limits<double>::infinity();
        if (a > largest) return std::numeric_limits<double>::quiet_NaN();
        if (exponent == 0) return sign_of_code * std::ldexp(mantissa, smallest());
        return sign_of_code * std::ldexp(mantissa + (1 << mantissa_bits), exponent - 1 + smallest());
    }
    // Returns the code of the number nearest to x; the even code if two are equally near.
    int round(double x) const {
        if (std::isnan(x)) return sign() - 1;
        int code = largest + 1;
        if (x == 0) code = 0;
        if (x != 0 && std::isfinite(x)) {
            // Codes are consecutive: each exponent has as many codes as its first number has units.
            const int unit = std::max(std::ilogb(x) - mantissa_bits, smallest());
            code = ((unit - smallest()) << mantissa_bits) +
                   static_cast<int>(std::nearbyint(std::ldexp(std::abs(x), -unit)));
        }
        if (code > largest) code = saturates ? largest : largest + 1;
        return code | (std::signbit(x) ? sign() : 0);
    }
};

template <typename T>
inline constexpr Format kFormat = {};
template <>
inline constexpr Format kFormat<bf16> = {8, 7, 0x7f7f, true, false};
template <>
inline constexpr Format kFormat<f16> = {5, 10, 0x7bff, true, false};
template <>
inline constexpr Format kFormat<e4m3> = {4, 3, 126, false, true};
template <>
inline constexpr Format kFormat<e5m2> = {5, 2, 123, true, true};

}  // namespace teon::test
