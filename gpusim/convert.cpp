// "Data Movement and Conversion Instructions: cvt".
#include "gpusim/convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "base/dtype.h"
#include "gpusim/float16.h"
#include "gpusim/lanes.h"

namespace teon::gpusim {

namespace {

// Rounds to nearest even (.rn) or towards zero (.rz). NaN becomes 0x7fff, as in both 16-bit types.
template <bool Nearest = true>
uint16_t to_bf16(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<uint16_t>((Nearest ? u + 0x7fffu + (u >> 16 & 1) : u) >> 16);
}
template <bool Nearest>
uint32_t to_bf16x2(float upper, float lower) {
    return uint32_t{to_bf16<Nearest>(upper)} << 16 | to_bf16<Nearest>(lower);
}
uint16_t to_f16(float x) { return x != x ? uint16_t{0x7fff} : std::bit_cast<uint16_t>(static_cast<Float16>(x)); }
template <typename F>
uint16_t to_fp8x2(float upper, float lower) {
    return static_cast<uint16_t>(F(upper).bits << 8 | F(lower).bits);
}
float from_bf16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }
float from_f16(uint16_t x) { return static_cast<float>(std::bit_cast<Float16>(x)); }

// Out of range, the nearest integer. NaN becomes 0, or the bits of 2^63 in 64-bit integers ("cvt", "Integer Notes", and
// constant folding by nvcc).
template <typename D, typename A, A (*Round)(A)>
D to_integer(A a) {
    if (a != a) return sizeof(D) == 8 ? static_cast<D>(uint64_t{1} << 63) : D{0};
    const A x = Round(a);
    const A above = std::ldexp(A{1}, std::numeric_limits<D>::digits);
    if (x >= above) return std::numeric_limits<D>::max();
    if (x < (std::is_signed_v<D> ? -above : A{0})) return std::numeric_limits<D>::min();
    return static_cast<D>(x);
}

template <typename A>
A nearest(A x) {
    return std::nearbyint(x);
}
template <typename A>
A zero(A x) {
    return std::trunc(x);
}
template <typename A>
A down(A x) {
    return std::floor(x);
}
template <typename A>
A up(A x) {
    return std::ceil(x);
}

template <typename D, typename A>
void floats_to_integers(Table& t, const std::string& to, const std::string& from) {
    t["cvt.rni." + to + "." + from] = each_lane<to_integer<D, A, nearest<A>>>();
    t["cvt.rzi." + to + "." + from] = each_lane<to_integer<D, A, zero<A>>>();
    t["cvt.rmi." + to + "." + from] = each_lane<to_integer<D, A, down<A>>>();
    t["cvt.rpi." + to + "." + from] = each_lane<to_integer<D, A, up<A>>>();
}

template <typename A>
void floats(Table& t, const std::string& from) {
    floats_to_integers<int32_t, A>(t, "s32", from);
    floats_to_integers<uint32_t, A>(t, "u32", from);
    floats_to_integers<int64_t, A>(t, "s64", from);
    floats_to_integers<uint64_t, A>(t, "u64", from);
    t["cvt.rni." + from + "." + from] = each_lane<nearest<A>>();
    t["cvt.rzi." + from + "." + from] = each_lane<zero<A>>();
    t["cvt.rmi." + from + "." + from] = each_lane<down<A>>();
    t["cvt.rpi." + from + "." + from] = each_lane<up<A>>();
}

template <typename D, typename A>
void integer_to_integer(Table& t, const std::string& to, const std::string& from) {
    t["cvt." + to + "." + from] = each_lane([](A a) { return static_cast<D>(a); });
}

template <typename A>
void integers(Table& t, const std::string& from) {
    integer_to_integer<uint16_t, A>(t, "u16", from);
    integer_to_integer<int16_t, A>(t, "s16", from);
    integer_to_integer<uint32_t, A>(t, "u32", from);
    integer_to_integer<int32_t, A>(t, "s32", from);
    integer_to_integer<uint64_t, A>(t, "u64", from);
    integer_to_integer<int64_t, A>(t, "s64", from);
    t["cvt.rn.f32." + from] = each_lane([](A a) { return static_cast<float>(a); });
    t["cvt.rn.f64." + from] = each_lane([](A a) { return static_cast<double>(a); });
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
    t["cvt.rn.bf16.f32"] = each_lane<to_bf16<true>>();
    t["cvt.rz.bf16.f32"] = each_lane<to_bf16<false>>();
    t["cvt.rn.f16.f32"] = each_lane<to_f16>();
    t["cvt.f32.bf16"] = each_lane<from_bf16>();
    t["cvt.f32.f16"] = each_lane<from_f16>();
    // Conversions of two floats: the first operand becomes the upper half.
    t["cvt.rn.bf16x2.f32"] = each_lane<to_bf16x2<true>>();
    t["cvt.rz.bf16x2.f32"] = each_lane<to_bf16x2<false>>();
    t["cvt.rn.satfinite.e4m3x2.f32"] = each_lane<to_fp8x2<e4m3>>();
    t["cvt.rn.satfinite.e5m2x2.f32"] = each_lane<to_fp8x2<e5m2>>();
    t["cvt.rn.f16x2.f32"] = each_lane([](float a, float b) { return uint32_t{to_f16(a)} << 16 | to_f16(b); });
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
