// "Integer Arithmetic Instructions", "Logic and Shift Instructions", and "Comparison and Selection Instructions" for
// integers.
#include "gpusim/integer.h"

#include <limits>
#include <string>
#include <type_traits>

#include "gpusim/lanes.h"

namespace teon::gpusim {

namespace {

template <typename T>
constexpr int kBits = 8 * sizeof(T);
template <typename T>
using Unsigned = std::make_unsigned_t<T>;
template <typename T>
using Wide =
    std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                       std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                                          std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>>>;

// An unsigned type in which products of T wrap around, instead of overflowing as signed integers.
template <typename T>
using Modulo = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// Shifts by the width or more shift out all bits.
template <typename T>
T shift_right(T a, uint32_t b) {
    constexpr uint32_t bits = kBits<T>;
    if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (b < bits ? b : bits - 1));
    return b < bits ? static_cast<T>(a >> b) : T{0};
}
template <typename T>
T shift_left(T a, uint32_t b) {
    constexpr uint32_t bits = kBits<T>;
    return b < bits ? static_cast<T>(a << b) : T{0};
}

template <typename T>
T high_product(T a, T b) {
    return static_cast<T>((static_cast<Wide<T>>(a) * b) >> kBits<T>);
}

// "Division by zero yields an unspecified, machine-specific value": all ones.
template <typename T>
T quotient(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if constexpr (std::is_signed_v<T>)
        if (b == -1) return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
    return static_cast<T>(a / b);
}
template <typename T>
T remainder(T a, T b) {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>)
        if (b == -1) return 0;
    return static_cast<T>(a % b);
}

template <typename T>
void arithmetic(Table& t, const std::string& type) {
    using U = Unsigned<T>;
    t["add." + type] = each_lane([](T a, T b) { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); });
    t["sub." + type] = each_lane([](T a, T b) { return static_cast<T>(static_cast<U>(a) - static_cast<U>(b)); });
    t["mul.lo." + type] =
        each_lane([](T a, T b) { return static_cast<T>(static_cast<Modulo<T>>(a) * static_cast<Modulo<T>>(b)); });
    t["mul.hi." + type] = each_lane<high_product<T>>();
    t["mad.lo." + type] = each_lane([](T a, T b, T c) {
        return static_cast<T>(static_cast<Modulo<T>>(a) * static_cast<Modulo<T>>(b) + static_cast<Modulo<T>>(c));
    });
    if constexpr (sizeof(T) < 8) {
        using W = Wide<T>;
        t["mul.wide." + type] = each_lane([](T a, T b) { return static_cast<W>(static_cast<W>(a) * b); });
        t["mad.wide." + type] = each_lane([](T a, T b, W c) {
            return static_cast<W>(static_cast<Unsigned<W>>(static_cast<W>(a) * b) + static_cast<Unsigned<W>>(c));
        });
    }
    t["div." + type] = each_lane([](T a, T b) { return quotient(a, b); });
    t["rem." + type] = each_lane([](T a, T b) { return remainder(a, b); });
    t["min." + type] = each_lane([](T a, T b) { return a < b ? a : b; });
    t["max." + type] = each_lane([](T a, T b) { return a > b ? a : b; });
    if constexpr (std::is_signed_v<T>) {
        t["neg." + type] = each_lane([](T a) { return static_cast<T>(U{0} - static_cast<U>(a)); });
        t["abs." + type] = each_lane([](T a) { return a < 0 ? static_cast<T>(U{0} - static_cast<U>(a)) : a; });
    }
    t["shr." + type] = each_lane<shift_right<T>>();
    t["setp.eq." + type] = each_lane([](T a, T b) { return a == b; });
    t["setp.ne." + type] = each_lane([](T a, T b) { return a != b; });
    t["setp.lt." + type] = each_lane([](T a, T b) { return a < b; });
    t["setp.le." + type] = each_lane([](T a, T b) { return a <= b; });
    t["setp.gt." + type] = each_lane([](T a, T b) { return a > b; });
    t["setp.ge." + type] = each_lane([](T a, T b) { return a >= b; });
    if constexpr (!std::is_signed_v<T>) {  // comparisons of unsigned numbers have additional names
        for (const auto& [alias, name] : {std::pair{"lo", "lt"}, {"ls", "le"}, {"hi", "gt"}, {"hs", "ge"}})
            t[std::string("setp.") + alias + "." + type] = t[std::string("setp.") + name + "." + type];
    }
}

template <typename U>
void logic(Table& t, const std::string& type) {
    t["and." + type] = each_lane([](U a, U b) { return static_cast<U>(a & b); });
    t["or." + type] = each_lane([](U a, U b) { return static_cast<U>(a | b); });
    t["xor." + type] = each_lane([](U a, U b) { return static_cast<U>(a ^ b); });
    t["not." + type] = each_lane([](U a) { return static_cast<U>(~a); });
    t["shl." + type] = each_lane<shift_left<U>>();
    t["shr." + type] = each_lane<shift_right<U>>();
    t["setp.eq." + type] = each_lane([](U a, U b) { return a == b; });
    t["setp.ne." + type] = each_lane([](U a, U b) { return a != b; });
}

template <typename U>
U insert_bits(U a, U b, uint32_t position, uint32_t length) {  // bfi
    position &= 255;
    length &= 255;
    if (position >= kBits<U> || length == 0) return b;
    const U ones = length >= kBits<U> ? static_cast<U>(~U{0}) : static_cast<U>((U{1} << length) - 1);
    const U mask = static_cast<U>(ones << position);
    return static_cast<U>((b & ~mask) | (a << position & mask));
}

template <typename T>
T extract_bits(T a, uint32_t position, uint32_t length) {  // bfe
    using U = Unsigned<T>;
    position &= 255;
    length &= 255;
    if (length == 0) return 0;
    const uint32_t last = std::min(position + length - 1, static_cast<uint32_t>(kBits<T> - 1));
    const bool sign = std::is_signed_v<T> && static_cast<U>(a) >> last & 1;
    U bits = position < kBits<T> ? static_cast<U>(static_cast<U>(a) >> position) : U{0};
    const uint32_t kept = position <= last ? last - position + 1 : 0;
    if (kept < kBits<T>) {
        const U ones = static_cast<U>((U{1} << kept) - 1);
        bits = static_cast<U>((bits & ones) | (sign ? ~ones : U{0}));
    }
    return static_cast<T>(bits);
}

// Selects four bytes of {b, a}, each by four bits of c. If the highest of these bits is set, the result is the byte's
// sign, replicated.
uint32_t permute(uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t all = uint64_t{b} << 32 | a;
    uint32_t d = 0;
    for (int k = 0; k < 4; ++k) {
        const uint32_t choice = c >> 4 * k & 15;
        uint32_t byte = static_cast<uint32_t>(all >> 8 * (choice & 7)) & 255;
        if (choice & 8) byte = byte & 128 ? 255 : 0;
        d |= byte << 8 * k;
    }
    return d;
}

// The position of the highest bit that differs from the sign, or the shift that moves it to the top; all ones if there
// is no such bit.
template <typename T>
void bit_search(Table& t, const std::string& type) {
    t["bfind." + type] = each_lane(
        [](T a) { return static_cast<uint32_t>(std::bit_width(static_cast<Unsigned<T>>(a < 0 ? ~a : a))) - 1; });
    t["bfind.shiftamt." + type] = each_lane([](T a) {
        const auto zeros = std::countl_zero(static_cast<Unsigned<T>>(a < 0 ? ~a : a));
        return zeros == kBits<T> ? ~0u : static_cast<uint32_t>(zeros);
    });
}

uint32_t reverse(uint32_t a) {
    uint32_t d = 0;
    for (int k = 0; k < 32; ++k) d |= (a >> k & 1) << (31 - k);
    return d;
}

}  // namespace

void add_integer_rows(Table& t) {
    arithmetic<int16_t>(t, "s16");
    arithmetic<uint16_t>(t, "u16");
    arithmetic<int32_t>(t, "s32");
    arithmetic<uint32_t>(t, "u32");
    arithmetic<int64_t>(t, "s64");
    arithmetic<uint64_t>(t, "u64");
    logic<uint16_t>(t, "b16");
    logic<uint32_t>(t, "b32");
    logic<uint64_t>(t, "b64");
    t["bfi.b32"] = each_lane<insert_bits<uint32_t>>();
    t["bfi.b64"] = each_lane<insert_bits<uint64_t>>();
    t["bfe.u32"] = each_lane<extract_bits<uint32_t>>();
    t["bfe.s32"] = each_lane<extract_bits<int32_t>>();
    t["bfe.u64"] = each_lane<extract_bits<uint64_t>>();
    t["bfe.s64"] = each_lane<extract_bits<int64_t>>();
    t["prmt.b32"] = each_lane<permute>();
    t["brev.b32"] = each_lane<reverse>();
    t["popc.b32"] = each_lane([](uint32_t a) { return static_cast<uint32_t>(std::popcount(a)); });
    t["popc.b64"] = each_lane([](uint64_t a) { return static_cast<uint32_t>(std::popcount(a)); });
    t["clz.b32"] = each_lane([](uint32_t a) { return static_cast<uint32_t>(std::countl_zero(a)); });
    t["clz.b64"] = each_lane([](uint64_t a) { return static_cast<uint32_t>(std::countl_zero(a)); });
    bit_search<uint32_t>(t, "u32");
    bit_search<int32_t>(t, "s32");
    bit_search<uint64_t>(t, "u64");
    bit_search<int64_t>(t, "s64");
    t["shf.l.wrap.b32"] = each_lane([](uint32_t a, uint32_t b, uint32_t c) {
        return static_cast<uint32_t>((uint64_t{b} << 32 | a) << (c & 31) >> 32);
    });
    t["shf.r.wrap.b32"] = each_lane(
        [](uint32_t a, uint32_t b, uint32_t c) { return static_cast<uint32_t>((uint64_t{b} << 32 | a) >> (c & 31)); });
}

}  // namespace teon::gpusim
