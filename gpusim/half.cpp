#include "gpusim/half.h"

#include <cmath>
#include <string>

#include "gpusim/lanes.h"

namespace teon::gpusim {

namespace {

// Sums and products of two 16-bit floats round in float without a second error when narrowed (float has more than twice
// their bits and two); a fused operation is exact in double but for its last bit, which is made odd if it was not
// exact.
template <typename H>
uint16_t fused(uint16_t a, uint16_t b, uint16_t c) {
    const double product = double{H::widen(a)} * H::widen(b);
    const double addend = H::widen(c);
    double sum = product + addend;
    const double rest = (product - (sum - addend)) + (addend - (sum - (sum - addend)));
    if (rest != 0 && std::isfinite(sum) && !(std::bit_cast<uint64_t>(sum) & 1))
        sum = std::bit_cast<double>(std::bit_cast<uint64_t>(sum) + ((rest > 0) == (sum > 0) ? 1 : -1));
    float x = static_cast<float>(sum);
    // Likewise to float: to odd, so that narrowing rounds only once.
    if (std::isfinite(x) && double{x} != sum) {
        if (std::fabs(double{x}) > std::fabs(sum)) x = std::nextafterf(x, 0.0f);
        x = std::bit_cast<float>(std::bit_cast<uint32_t>(x) | 1);
    }
    return H::narrow(x);
}

struct Add {
    static float of(float a, float b) { return a + b; }
};
struct Subtract {
    static float of(float a, float b) { return a - b; }
};
struct Multiply {
    static float of(float a, float b) { return a * b; }
};
// "If one of the inputs is NaN, the other one is the result; +0.0 > -0.0".
template <bool Greatest, bool KeepsNaN>
struct Extreme {
    static float of(float a, float b) {
        const bool both = a != a && b != b;
        if ((a != a || b != b) && (KeepsNaN || both)) return NAN;
        if (a != a) return b;
        if (b != b) return a;
        if (a == b) return std::signbit(a) == Greatest ? b : a;
        return (a > b) == Greatest ? a : b;
    }
};

template <typename H, typename F>
uint16_t one(uint16_t a, uint16_t b) {
    return H::narrow(F::of(H::widen(a), H::widen(b)));
}
uint16_t low(uint32_t x) { return static_cast<uint16_t>(x); }
uint16_t high(uint32_t x) { return static_cast<uint16_t>(x >> 16); }
uint32_t pair(uint16_t upper, uint16_t lower) { return uint32_t{upper} << 16 | lower; }

template <typename H, typename F>
void binary(Table& t, const std::string& name, const std::string& type) {
    t[name + "." + type] = each_lane<one<H, F>>();
    t[name + "." + type + "x2"] =
        each_lane([](uint32_t a, uint32_t b) { return pair(one<H, F>(high(a), high(b)), one<H, F>(low(a), low(b))); });
}

template <typename H>
uint16_t relu(uint16_t x) {
    return H::widen(x) > 0 || H::widen(x) != H::widen(x) ? x : uint16_t{0};
}

template <typename H>
void half(Table& t, const std::string& type) {
    for (const std::string round : {"", ".rn"}) {
        binary<H, Add>(t, "add" + round, type);
        binary<H, Subtract>(t, "sub" + round, type);
        binary<H, Multiply>(t, "mul" + round, type);
    }
    binary<H, Extreme<false, false>>(t, "min", type);
    binary<H, Extreme<true, false>>(t, "max", type);
    binary<H, Extreme<false, true>>(t, "min.NaN", type);
    binary<H, Extreme<true, true>>(t, "max.NaN", type);
    t["fma.rn." + type] = each_lane<fused<H>>();
    t["fma.rn." + type + "x2"] = each_lane([](uint32_t a, uint32_t b, uint32_t c) {
        return pair(fused<H>(high(a), high(b), high(c)), fused<H>(low(a), low(b), low(c)));
    });
    t["fma.rn.relu." + type + "x2"] = each_lane([](uint32_t a, uint32_t b, uint32_t c) {
        return pair(relu<H>(fused<H>(high(a), high(b), high(c))), relu<H>(fused<H>(low(a), low(b), low(c))));
    });
    t["neg." + type] = each_lane([](uint16_t a) { return static_cast<uint16_t>(a ^ 0x8000); });
    t["abs." + type] = each_lane([](uint16_t a) { return static_cast<uint16_t>(a & 0x7fff); });
    t["neg." + type + "x2"] = each_lane([](uint32_t a) { return a ^ 0x80008000u; });
    t["abs." + type + "x2"] = each_lane([](uint32_t a) { return a & 0x7fff7fffu; });
    t["setp.eq." + type] = each_lane([](uint16_t a, uint16_t b) { return H::widen(a) == H::widen(b); });
    t["setp.lt." + type] = each_lane([](uint16_t a, uint16_t b) { return H::widen(a) < H::widen(b); });
    t["setp.le." + type] = each_lane([](uint16_t a, uint16_t b) { return H::widen(a) <= H::widen(b); });
    t["setp.gt." + type] = each_lane([](uint16_t a, uint16_t b) { return H::widen(a) > H::widen(b); });
    t["setp.ge." + type] = each_lane([](uint16_t a, uint16_t b) { return H::widen(a) >= H::widen(b); });
    t["setp.neu." + type] = each_lane([](uint16_t a, uint16_t b) { return H::widen(a) != H::widen(b); });
    t["cvt.rn." + type + ".s32"] = each_lane([](int32_t a) { return H::narrow(static_cast<float>(a)); });
    t["cvt.rn." + type + ".u32"] = each_lane([](uint32_t a) { return H::narrow(static_cast<float>(a)); });
}

}  // namespace

void add_half_rows(Table& t) {
    half<HalfBf16>(t, "bf16");
    half<HalfF16>(t, "f16");
}

}  // namespace teon::gpusim
