// "Floating Point Instructions", and "Comparison and Selection Instructions" for floats. Rounding is to nearest even
// unless the name says otherwise. The approximate functions (.approx) are as accurate as the host's library, except ex2
// and rcp.approx.ftz.f64; a GPU's results differ in the last bits, within the errors that the manual states.
#include "gpusim/float.h"

#include <cmath>
#include <limits>
#include <string>

#include "gpusim/lanes.h"

namespace teon::gpusim {

namespace {

// .ftz: subnormal operands and results become zeros of the same sign.
inline float ftz(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

// The canonical NaN of float results is 0x7fffffff.
inline float nan_f32() { return std::bit_cast<float>(0x7fffffffu); }

// "If one of the inputs is NaN, the other one is the result; +0.0 > -0.0". Equal numbers with different bits are zeros.
template <typename T, typename Bits, bool Greatest>
T extreme(T a, T b) {
    const Bits x = std::bit_cast<Bits>(a);
    const Bits y = std::bit_cast<Bits>(b);
    const T of_equal = std::bit_cast<T>(static_cast<Bits>(Greatest ? x & y : x | y));
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return of_equal;
    return (a > b) == Greatest ? a : b;
}
template <bool Greatest>
float extreme_f32(float a, float b) {
    const float r = extreme<float, uint32_t, Greatest>(a, b);
    return r != r ? nan_f32() : r;
}
template <bool Greatest>
float extreme_nan_f32(float a, float b) {
    const float r = extreme<float, uint32_t, Greatest>(a, b);
    return a != a || b != b ? nan_f32() : r;
}

// .sat: to [0, 1]; NaN becomes 0.
float saturated(float x) {
    const float low = x > 0.0f ? x : 0.0f;
    return low < 1.0f ? low : 1.0f;
}

// Directed rounding of a result that is `x` to nearest and differs from the exact one by `rest` (exact minus x), of
// which only the sign counts.
struct Down {
    static float step(float x, double rest) { return rest < 0 ? std::nextafterf(x, -INFINITY) : x; }
};
struct Up {
    static float step(float x, double rest) { return rest > 0 ? std::nextafterf(x, INFINITY) : x; }
};
struct ToZero {
    static float step(float x, double rest) {
        return rest != 0 && (rest < 0) == (x > 0) ? std::nextafterf(x, 0.0f) : x;
    }
};
// The sign of a b + c - x: the product is exact in double, and so are the two parts of its sum with c.
double rest_of(float a, float b, float c, float x) {
    const double product = double{a} * b;
    const double sum = product + c;
    const double part = sum - product;
    const double low = (product - (sum - part)) + (c - part);
    const double high = sum - x;
    return high != 0 ? high : low;
}

template <typename Rounding>
void directed(Table& t, const std::string& mode) {
    t["add." + mode + ".f32"] = each_lane([](float a, float b) {
        const float x = a + b;
        return std::isfinite(x) ? Rounding::step(x, rest_of(a, 1, b, x)) : x;
    });
    t["sub." + mode + ".f32"] = each_lane([](float a, float b) {
        const float x = a - b;
        return std::isfinite(x) ? Rounding::step(x, rest_of(a, 1, -b, x)) : x;
    });
    t["mul." + mode + ".f32"] = each_lane([](float a, float b) {
        const float x = a * b;
        return std::isfinite(x) ? Rounding::step(x, rest_of(a, b, 0, x)) : x;
    });
    const auto fma = [](float a, float b, float c) {
        const float x = std::fma(a, b, c);
        return std::isfinite(x) ? Rounding::step(x, rest_of(a, b, c, x)) : x;
    };
    t["fma." + mode + ".f32"] = each_lane(fma);
    t["fma." + mode + ".ftz.f32"] = each_lane([](float a, float b, float c) {
        const float x = std::fma(ftz(a), ftz(b), ftz(c));
        return std::isfinite(x) ? ftz(Rounding::step(x, rest_of(ftz(a), ftz(b), ftz(c), x))) : x;
    });
}

template <typename T>
void arithmetic(Table& t, const std::string& type) {
    for (const std::string round : {"", "rn."}) {
        t["add." + round + type] = each_lane([](T a, T b) { return a + b; });
        t["sub." + round + type] = each_lane([](T a, T b) { return a - b; });
        t["mul." + round + type] = each_lane([](T a, T b) { return a * b; });
    }
    t["fma.rn." + type] = each_lane([](T a, T b, T c) { return std::fma(a, b, c); });
    t["div.rn." + type] = each_lane([](T a, T b) { return a / b; });
    t["rcp.rn." + type] = each_lane([](T a) { return T{1} / a; });
    t["sqrt.rn." + type] = each_lane([](T a) { return std::sqrt(a); });
    t["neg." + type] = each_lane([](T a) { return -a; });
    t["abs." + type] = each_lane([](T a) { return std::fabs(a); });
    t["copysign." + type] = each_lane([](T a, T b) { return std::copysign(b, a); });
    // Comparisons with NaN are false; those with a "u" are true.
    t["setp.eq." + type] = each_lane([](T a, T b) { return a == b; });
    t["setp.ne." + type] = each_lane([](T a, T b) { return a < b || a > b; });
    t["setp.lt." + type] = each_lane([](T a, T b) { return a < b; });
    t["setp.le." + type] = each_lane([](T a, T b) { return a <= b; });
    t["setp.gt." + type] = each_lane([](T a, T b) { return a > b; });
    t["setp.ge." + type] = each_lane([](T a, T b) { return a >= b; });
    t["setp.equ." + type] = each_lane([](T a, T b) { return !(a < b || a > b); });
    t["setp.neu." + type] = each_lane([](T a, T b) { return a != b; });
    t["setp.ltu." + type] = each_lane([](T a, T b) { return !(a >= b); });
    t["setp.leu." + type] = each_lane([](T a, T b) { return !(a > b); });
    t["setp.gtu." + type] = each_lane([](T a, T b) { return !(a <= b); });
    t["setp.geu." + type] = each_lane([](T a, T b) { return !(a < b); });
    t["setp.num." + type] = each_lane([](T a, T b) { return a == a && b == b; });
    t["setp.nan." + type] = each_lane([](T a, T b) { return a != a || b != b; });
}

// The rows NAME.f32 and NAME.ftz.f32 of a function of one operand.
template <float (*F)(float)>
void approximate(Table& t, const std::string& name) {
    t[name + ".f32"] = each_lane([](float a) { return F(a); });
    t[name + ".ftz.f32"] = each_lane([](float a) { return ftz(F(ftz(a))); });
}

// 2^x within 2 ulp, by vector instructions: the nearest integer goes to the exponent, and a Taylor polynomial
// approximates the rest.
[[gnu::always_inline]] inline float exp2_(float x) {
    const float least = x < -150.0f ? -150.0f : x;
    const float bounded = least < 129.0f ? least : 129.0f;
    const float whole = std::nearbyint(bounded);
    const float t = (bounded - whole) * 0.69314718f;
    const auto next = [t](float p, float c) { return std::fma(p, t, c); };
    const float high = next(next(next(1.0f / 5040, 1.0f / 720), 1.0f / 120), 1.0f / 24);
    const float p = next(next(next(next(high, 1.0f / 6), 0.5f), 1.0f), 1.0f);
    const int n = static_cast<int>(whole);
    const int half = n >> 1;  // in two steps, for subnormal results
    const auto power = [](int e) { return std::bit_cast<float>((e + 127) << 23); };
    return x != x ? x : p * power(half) * power(n - half);
}
float log2_(float x) { return log2f(x); }
float reciprocal(float x) { return 1.0f / x; }
float reciprocal_root(float x) { return 1.0f / std::sqrt(x); }
float root(float x) { return std::sqrt(x); }
float sine(float x) { return sinf(x); }
float cosine(float x) { return cosf(x); }
float tangent(float x) { return tanhf(x); }

}  // namespace

void add_float_rows(Table& t) {
    arithmetic<float>(t, "f32");
    arithmetic<double>(t, "f64");
    t["min.f32"] = each_lane<extreme_f32<false>>();
    t["max.f32"] = each_lane<extreme_f32<true>>();
    t["min.NaN.f32"] = each_lane<extreme_nan_f32<false>>();
    t["max.NaN.f32"] = each_lane<extreme_nan_f32<true>>();
    t["min.f64"] = each_lane<extreme<double, uint64_t, false>>();
    t["max.f64"] = each_lane<extreme<double, uint64_t, true>>();
    t["add.ftz.f32"] = each_lane([](float a, float b) { return ftz(ftz(a) + ftz(b)); });
    t["sub.ftz.f32"] = each_lane([](float a, float b) { return ftz(ftz(a) - ftz(b)); });
    t["mul.ftz.f32"] = each_lane([](float a, float b) { return ftz(ftz(a) * ftz(b)); });
    t["fma.rn.ftz.f32"] = each_lane([](float a, float b, float c) { return ftz(std::fma(ftz(a), ftz(b), ftz(c))); });
    for (const char* name : {"div.approx", "div.full"})
        t[name + std::string(".f32")] = each_lane([](float a, float b) { return a / b; });
    for (const char* name : {"div.approx", "div.full"})
        t[name + std::string(".ftz.f32")] = each_lane([](float a, float b) { return ftz(ftz(a) / ftz(b)); });
    t["cvt.sat.f32.f32"] = each_lane([](float a) { return saturated(a); });
    t["cvt.ftz.sat.f32.f32"] = each_lane([](float a) { return saturated(ftz(a)); });
    t["add.sat.f32"] = each_lane([](float a, float b) { return saturated(a + b); });
    t["add.ftz.sat.f32"] = each_lane([](float a, float b) { return saturated(ftz(a) + ftz(b)); });
    t["mul.sat.f32"] = each_lane([](float a, float b) { return saturated(a * b); });
    t["fma.rn.sat.f32"] = each_lane([](float a, float b, float c) { return saturated(std::fma(a, b, c)); });
    t["fma.rn.ftz.sat.f32"] =
        each_lane([](float a, float b, float c) { return saturated(std::fma(ftz(a), ftz(b), ftz(c))); });
    directed<Down>(t, "rm");
    directed<Up>(t, "rp");
    directed<ToZero>(t, "rz");
    // "20 mantissa bits are right, the lower 32 bits of the result are zero"; nvcc emits code that refines it.
    t["rcp.approx.ftz.f64"] = each_lane(
        [](double a) { return std::bit_cast<double>(std::bit_cast<uint64_t>(1 / a) & ~uint64_t{0xffffffff}); });
    approximate<exp2_>(t, "ex2.approx");
    approximate<log2_>(t, "lg2.approx");
    approximate<reciprocal>(t, "rcp.approx");
    approximate<reciprocal_root>(t, "rsqrt.approx");
    approximate<root>(t, "sqrt.approx");
    approximate<sine>(t, "sin.approx");
    approximate<cosine>(t, "cos.approx");
    approximate<tangent>(t, "tanh.approx");
}

}  // namespace teon::gpusim
