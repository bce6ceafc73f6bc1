// "Data Movement and Conversion Instructions: cvt".
#include "gpusim/convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "base/dtype.h"
#include "gpusim/half.h"
#include "gpusim/lanes.h"

namespace teon::gpusim {

namespace {

// Towards zero (.rz); gpusim/half.h rounds to nearest even.
uint16_t truncated_bf16(float x) {
    return x != x ? uint16_t{0x7fff} : static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
}
template <uint16_t (*Narrow)(float)>
uint32_t narrow_two(float upper, float lower) {
    return uint32_t{Narrow(upper)} << 16 | Narrow(lower);
}
template <typename F>
uint16_t to_fp8x2(float upper, float lower) {
    return static_cast<uint16_t>(F(upper).bits << 8 | F(lower).bits);
}

// Out of range, the nearest integer. NaN becomes 0, or the bits of 2^63 in 64-bit integers ("cvt", "Integer Notes", and
// constant folding by nvcc).
template <typename D, auto Round, typename A>
D to_integer(A a) {
    if (a != a) return sizeof(D) == 8 ? static_cast<D>(uint64_t{1} << 63) : D{0};
    const A x = Round(a);
    const A above = std::ldexp(A{1}, std::numeric_limits<D>::digits);
    if (x >= above) return std::numeric_limits<D>::max();
    if (x < (std::is_signed_v<D> ? -above : A{0})) return std::numeric_limits<D>::min();
    return static_cast<D>(x);
}

constexpr auto kNearest = [](auto x) { return std::nearbyint(x); };
constexpr auto kTowardsZero = [](auto x) { return std::trunc(x); };
constexpr auto kDown = [](auto x) { return std::floor(x); };
constexpr auto kUp = [](auto x) { return std::ceil(x); };

template <typename A, auto Round>
void rounded_floats(Table& t, const std::string& mode, const std::string& from) {
    const auto add = [&]<typename D>(const std::string& to, D) {
        t["cvt." + mode + "." + to + "." + from] = each_lane([](A a) { return to_integer<D, Round>(a); });
    };
    add("s32", int32_t{});
    add("u32", uint32_t{});
    add("s64", int64_t{});
    add("u64", uint64_t{});
    t["cvt." + mode + "." + from + "." + from] = each_lane([](A a) { return Round(a); });
}

template <typename A>
void floats(Table& t, const std::string& from) {
    rounded_floats<A, kNearest>(t, "rni", from);
    rounded_floats<A, kTowardsZero>(t, "rzi", from);
    rounded_floats<A, kDown>(t, "rmi", from);
    rounded_floats<A, kUp>(t, "rpi", from);
}

template <typename A>
void integers(Table& t, const std::string& from) {
    const auto add = [&]<typename D>(const std::string& to, D) {
        t["cvt." + to + "." + from] = each_lane([](A a) { return static_cast<D>(a); });
    };
    add("u16", uint16_t{});
    add("s16", int16_t{});
    add("u32", uint32_t{});
    add("s32", int32_t{});
    add("u64", uint64_t{});
    add("s64", int64_t{});
    add("rn.f32", float{});  // cvt.rn.f32.s32
    add("rn.f64", double{});
}

}  // namespace

void add_conversion_rows(Table& t) {
    floats<float>(t, "f32");
    floats<double>(t, "f64");
    integers<uint16_t>(t, "u16");
    integers<int16_t>(t, "s16");
    integers<uint32_t>(t, "u32");
    integers<int32_t>(t, "s32");
    integers<uint64_t>(t, "u64");
    integers<int64_t>(t, "s64");
    t["cvt.f64.f32"] = each_lane([](float a) { return static_cast<double>(a); });
    t["cvt.rn.f32.f64"] = each_lane([](double a) { return static_cast<float>(a); });
    t["cvt.rn.bf16.f32"] = each_lane<HalfBf16::narrow>();
    t["cvt.rz.bf16.f32"] = each_lane<truncated_bf16>();
    t["cvt.rn.f16.f32"] = each_lane<HalfF16::narrow>();
    t["cvt.f32.bf16"] = each_lane<HalfBf16::widen>();
    t["cvt.f32.f16"] = each_lane<HalfF16::widen>();
    // Conversions of two floats: the first operand becomes the upper half.
    t["cvt.rn.bf16x2.f32"] = each_lane<narrow_two<HalfBf16::narrow>>();
    t["cvt.rz.bf16x2.f32"] = each_lane<narrow_two<truncated_bf16>>();
    t["cvt.rn.satfinite.e4m3x2.f32"] = each_lane<to_fp8x2<e4m3>>();
    t["cvt.rn.satfinite.e5m2x2.f32"] = each_lane<to_fp8x2<e5m2>>();
    t["cvt.rn.f16x2.f32"] = each_lane<narrow_two<HalfF16::narrow>>();
}

// Converts integers in registers that are wider than their types: `bytes` and `sign` describe the operand's type,
// `vector` (bytes) and `variant` (sign) the result's.
void convert_width(Warp& w, const Instruction& i, Lanes lanes) {
    const auto extend = [](uint64_t x, int bytes, bool sign) {
        if (bytes == 8) return x;
        x &= (uint64_t{1} << 8 * bytes) - 1;
        return sign && x >> (8 * bytes - 1) & 1 ? x | ~uint64_t{0} << 8 * bytes : x;
    };
    for_lanes(lanes, [&](int l) {
        uint64_t x = 0;
        std::memcpy(&x, w.operand<uint8_t>(i, 1) + l * i.address_width, i.address_width);
        x = extend(extend(x, i.bytes, i.sign), i.vector, i.variant);
        std::memcpy(w.operand<uint8_t>(i, 0) + l * i.width, &x, i.width);
    });
}

}  // namespace teon::gpusim
