// Storage types. Everything is stored as float or bf16 (f16 only inside Gram Newton-Schulz; FP8 only as the operands of
// products) and accumulated in float. Both backends round alike: to nearest, ties to even, NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "base/enum_names.h"

#if defined(__CUDACC__)
#define TEON_HD __host__ __device__ __forceinline__
#define TEON_D __device__ __forceinline__
#else
#define TEON_HD inline __attribute__((always_inline))
#define TEON_D TEON_HD
#endif

namespace teon {

// The storage types, one row each: value, C++ type, name. Code that depends on a type either derives from its row or is
// a switch over DType without a default branch. After a new row, such a switch does not compile (-Werror=switch) until
// it has a case for the row.
#define TEON_WIDE_DTYPES(ROW) \
    ROW(f32, float, "float")  \
    ROW(bf16, bf16, "bf16")   \
    ROW(f16, f16, "f16")
#define TEON_FP8_DTYPES(ROW) \
    ROW(e4m3, e4m3, "e4m3")  \
    ROW(e5m2, e5m2, "e5m2")
#define TEON_DTYPES(ROW) TEON_WIDE_DTYPES(ROW) TEON_FP8_DTYPES(ROW)

#define TEON_ROW(value, type, name) value,
enum class DType : uint8_t { TEON_DTYPES(TEON_ROW) };
#undef TEON_ROW
#define TEON_ROW(value, type, name) {DType::value, name},
template <>
inline constexpr auto kEnumNames<DType> = enum_names<DType>({TEON_DTYPES(TEON_ROW)});
#undef TEON_ROW

TEON_HD uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
TEON_HD float bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

// The result of the GPU's cvt for every NaN, in bf16 and in f16 (PTX ISA, "cvt").
inline constexpr uint32_t kNarrowNaN = 0x7fffu;

// bfloat16: the upper half of a float.
struct bf16 {
    uint16_t bits;
    bf16() = default;
    TEON_HD explicit bf16(float x) {
#if defined(__CUDA_ARCH__)
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
        uint32_t u = float_bits(x);
        uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? kNarrowNaN : rounded);
#endif
    }
    TEON_HD operator float() const { return bits_float(static_cast<uint32_t>(bits) << 16); }
};

// IEEE binary16, with gradual underflow; overflow goes to infinity.
struct f16 {
    uint16_t bits;
    f16() = default;
    TEON_HD explicit f16(float x) {
#if defined(__CUDA_ARCH__)
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
        uint32_t u = float_bits(x);
        uint32_t sign = (u >> 16) & 0x8000u;
        uint32_t a = u & 0x7fffffffu;
        uint32_t h;
        if (a > 0x7f800000u) {
            h = kNarrowNaN;
            sign = 0;
        } else if (a >= 0x477ff000u) {  // rounds to 2^16 or beyond
            h = 0x7c00u;
        } else if (a < 0x38800000u) {  // subnormal half: let float addition do the rounding
            h = float_bits(bits_float(a) + 0.5f) - 0x3f000000u;
        } else {
            h = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
        }
        bits = static_cast<uint16_t>(sign | h);
#endif
    }
    TEON_HD operator float() const {
#if defined(__CUDA_ARCH__)
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
#else
        uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
        uint32_t e = (bits >> 10) & 0x1fu;
        uint32_t m = bits & 0x3ffu;
        if (e == 0) return bits_float(sign | float_bits(static_cast<float>(m) * 5.9604644775390625e-8f));
        if (e == 31) return bits_float(sign | 0x7f800000u | (m << 13));
        return bits_float(sign | ((e + 112u) << 23) | (m << 13));
#endif
    }
};

// FP8 (Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433): a sign bit, an exponent with the bias
// BIAS, and MANTISSA bits. LARGEST is the code of the largest number. Larger numbers and infinity are converted to the
// largest number, and NaN to 0x7f (PTX ISA, "cvt", .satfinite).
template <int MANTISSA, int BIAS, uint8_t LARGEST>
struct Fp8 {
    static constexpr uint8_t kLargest = LARGEST;
    uint8_t bits;
    Fp8() = default;
    TEON_HD explicit Fp8(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
        bits = static_cast<uint8_t>(round_two(x, 0.0f));
#else
        constexpr uint32_t drop = 23 - MANTISSA;
        constexpr uint32_t least_normal = (128u - BIAS) << 23;
        constexpr uint32_t unit = (127u + drop + 1 - BIAS) << 23;  // a float whose last bit is the least number
        const uint32_t u = float_bits(x);
        const uint32_t a = u & 0x7fffffffu;
        const uint32_t normal = (a - ((127u - BIAS) << 23) + (1u << (drop - 1)) - 1 + ((a >> drop) & 1)) >> drop;
        const uint32_t subnormal = float_bits(bits_float(a) + bits_float(unit)) - unit;
        const uint32_t rounded = a < least_normal ? subnormal : normal;
        const uint32_t finite = (rounded < LARGEST ? rounded : LARGEST) | (u >> 24 & 0x80u);
        bits = static_cast<uint8_t>(a > 0x7f800000u ? 0x7fu : finite);
#endif
    }
    TEON_HD operator float() const {
        const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
        const uint32_t a = bits & 0x7fu;
        const uint32_t e = a >> MANTISSA;
        constexpr uint32_t infinity = MANTISSA == 2 ? LARGEST + 1u : 0;  // E5M2's code of it; E4M3 has none
        constexpr uint32_t least = (128u - BIAS - MANTISSA) << 23;       // the least number, as a float
        if (a > LARGEST) return bits_float(sign | (a == infinity ? 0x7f800000u : 0x7fc00000u));
        if (e == 0) return bits_float(sign | float_bits(static_cast<float>(a) * bits_float(least)));
        return bits_float(sign | ((a << (23 - MANTISSA)) + ((127u - BIAS) << 23)));
    }
#if defined(__CUDACC__)
    // Returns two codes, that of `first` in the lower byte.
    static __device__ __forceinline__ uint16_t round_two(float first, float second) {
        uint16_t two = 0;
        if constexpr (MANTISSA == 3)
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(second), "f"(first));
        else
            asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(second), "f"(first));
        return two;
    }
#endif
};
using e4m3 = Fp8<3, 7, 0x7e>;   // to 448, without infinity
using e5m2 = Fp8<2, 15, 0x7b>;  // to 57344

// The DType of a storage type; nullptr for any other type.
template <typename T>
inline constexpr auto dtype_of = nullptr;
#define TEON_ROW(value, type, name)                      \
    template <>                                          \
    inline constexpr auto dtype_of<type> = DType::value; \
    static_assert(std::is_trivially_copyable_v<type> && std::has_single_bit(sizeof(type)) && sizeof(type) <= 4, name);
TEON_DTYPES(TEON_ROW)
#undef TEON_ROW

// Bytes of an element.
constexpr int size_of(DType t) {
#define TEON_ROW(value, type, name) sizeof(type),
    constexpr int bytes[] = {TEON_DTYPES(TEON_ROW)};
#undef TEON_ROW
    return bytes[static_cast<int>(t)];
}

constexpr bool is_fp8(DType t) { return t == DType::e4m3 || t == DType::e5m2; }

// Returns f(x), where x is a value of the type `dtype`. Throws Error if the type is FP8.
template <typename F>
decltype(auto) visit_dtype(DType dtype, F f) {
    switch (dtype) {
#define TEON_ROW(value, type, name) \
    case DType::value:              \
        return f(type{});
        TEON_WIDE_DTYPES(TEON_ROW)
#undef TEON_ROW
#define TEON_ROW(value, type, name) case DType::value:
        TEON_FP8_DTYPES(TEON_ROW)
#undef TEON_ROW
        break;
    }
    throw Error(fmt::format("only products take operands of {}", name_of(dtype)));
}

}  // namespace teon
