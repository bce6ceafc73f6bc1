// Storage types. Everything is stored as float or bf16 (f16 only inside Gram Newton-Schulz) and accumulated in float.
// Both backends round alike: to nearest, ties to even, NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/enum_names.h"

#if defined(__CUDACC__)
#define TEON_HD __host__ __device__ __forceinline__
#define TEON_D __device__ __forceinline__
#else
#define TEON_HD inline __attribute__((always_inline))
#define TEON_D TEON_HD
#endif

namespace teon {

// The storage types, one row each: value, C++ type, name. What depends on a type either derives from its row or is a
// switch over DType without a default branch, which does not compile (-Werror=switch) until it has a case for a new
// row.
#define TEON_DTYPES(ROW)     \
    ROW(f32, float, "float") \
    ROW(bf16, bf16, "bf16")  \
    ROW(f16, f16, "f16")

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

// What the GPU's cvt makes of every NaN, in bf16 and in f16 (PTX ISA, "cvt").
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
        uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
        uint32_t h;
        if (a > 0x7f800000u) {
            h = kNarrowNaN, sign = 0;
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
        uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, e = (bits >> 10) & 0x1fu, m = bits & 0x3ffu;
        if (e == 0) return bits_float(sign | float_bits(static_cast<float>(m) * 5.9604644775390625e-8f));
        if (e == 31) return bits_float(sign | 0x7f800000u | (m << 13));
        return bits_float(sign | ((e + 112u) << 23) | (m << 13));
#endif
    }
};

// The value of a storage type; of other types none.
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

// f(x) with a value x of the type that `dtype` names.
template <typename F>
decltype(auto) visit_dtype(DType dtype, F f) {
    switch (dtype) {
#define TEON_ROW(value, type, name) \
    case DType::value:              \
        return f(type{});
        TEON_DTYPES(TEON_ROW)
#undef TEON_ROW
    }
    __builtin_unreachable();
}

}  // namespace teon
