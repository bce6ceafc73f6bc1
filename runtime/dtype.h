// Storage types. Everything is stored as float or bf16 (f16 only inside Gram Newton-Schulz) and accumulated in float.
// Both backends round alike: to nearest, ties to even, NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "runtime/enum_names.h"

#if defined(__CUDACC__)
#define TEON_HD __host__ __device__ __forceinline__
#define TEON_D __device__ __forceinline__
#else
#define TEON_HD inline __attribute__((always_inline))
#define TEON_D TEON_HD
#endif

namespace teon {

enum class DType : uint8_t { f32, bf16, f16 };
template <>
inline constexpr auto kEnumNames<DType> =
    enum_names<DType>({{DType::f32, "float"}, {DType::bf16, "bf16"}, {DType::f16, "f16"}});

constexpr int size_of(DType t) { return t == DType::f32 ? 4 : 2; }

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

template <typename T>
constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;

// The widest access of one thread: 16 bytes on a GPU, a 64-byte vector register's worth on a CPU. TEON_CUDA is defined
// for every file of a CUDA build, also those that g++ compiles, so that all agree. Rows of up to kRowAlone elements
// that have to be reduced are one thread's work each, longer ones are shared by a warp or block: on a CPU a warp-wide
// reduction costs as much as reading a short row; on a GPU neighbouring threads have to share rows for their loads to
// coalesce.
#if defined(TEON_CUDA) || defined(__CUDACC__) || defined(TEON_UNKIND)
inline constexpr int kVecBytes = 16;
inline constexpr int kRowAlone = 0;
#else
inline constexpr int kVecBytes = 64;
inline constexpr int kRowAlone = 2048;
#endif
template <typename T>
inline constexpr int kVecWidth = kVecBytes / static_cast<int>(sizeof(T));

// N elements that move as one access. The address must be a multiple of sizeof(Vec) (CHECKed by launchers).
template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
    T v[N];
    TEON_HD T& operator[](int i) { return v[i]; }
    TEON_HD const T& operator[](int i) const { return v[i]; }
};

// The loop over the elements of a Vec: FOR_VEC(k, N) y[k] = f(x[k]). Unrolled on a GPU. On the host it has to stay a
// loop, which g++ turns into vector instructions; unrolled early, it would make g++ vectorize the loop around it, by
// transposing.
#if defined(__CUDACC__)
#define FOR_VEC(k, N) _Pragma("unroll") for (int k = 0; k < (N); k++)
#else
#define FOR_VEC(k, N) _Pragma("GCC unroll 1") for (int k = 0; k < (N); k++)
#endif

template <int N, typename T>
TEON_HD Vec<T, N> load_vec(const T* p) {
    return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <int N, typename T>
TEON_HD void store_vec(T* p, const Vec<T, N>& x) {
    *reinterpret_cast<Vec<T, N>*>(p) = x;
}

// N floats rounded to T; on a GPU two bf16 by one instruction.
template <typename T, int N>
TEON_D Vec<T, N> round_vec(const Vec<float, N>& x) {
    Vec<T, N> y;
#if defined(__CUDA_ARCH__)
    if constexpr (N % 2 == 0 && std::is_same_v<T, bf16>) {
#pragma unroll
        for (int k = 0; k < N; k += 2) {
            uint32_t two;
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(x[k + 1]), "f"(x[k]));
            memcpy(&y[k], &two, 4);
        }
    } else
#endif
    {
        FOR_VEC(k, N) y[k] = static_cast<T>(x[k]);
    }
    return y;
}

// Whether W-wide accesses are possible: every row starts at a multiple of W elements of T.
template <typename T, int W, typename... P>
bool vec_aligned(int64_t row_length, const P*... pointers) {
    if (row_length % W != 0) return false;
    return ((reinterpret_cast<uintptr_t>(pointers) % (sizeof(P) * W) == 0) && ...);
}

}  // namespace teon
