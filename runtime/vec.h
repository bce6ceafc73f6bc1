// Vectors of elements that one access loads or stores, and their width on this backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.h"

namespace teon {

// Whether this is a CUDA build. TEON_CUDA is defined for every file of a CUDA build, including files that g++ compiles,
// so that all files agree.
#if defined(TEON_CUDA) || defined(__CUDACC__)
inline constexpr bool kGpu = true;
#else
inline constexpr bool kGpu = false;
#endif

// The widest access of one thread: 16 bytes on a GPU, a 64-byte vector register's worth on a CPU.
inline constexpr int kVecBytes = kGpu ? 16 : 64;
template <typename T>
inline constexpr int kVecWidth = kVecBytes / static_cast<int>(sizeof(T));

// N elements that one access loads or stores. The address must be a multiple of sizeof(Vec) (CHECKed by launchers).
template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
    T v[N];
    TEON_HD T& operator[](int i) { return v[i]; }
    TEON_HD const T& operator[](int i) const { return v[i]; }
};

// The loop over the elements of a Vec: FOR_VEC(k, N) y[k] = f(x[k]). Unrolled on a GPU. On the host it must remain a
// loop, which g++ turns into vector instructions; if it were unrolled early, g++ would vectorize the surrounding loop
// instead, by transposing.
#if defined(__CUDACC__)
#define FOR_VEC(k, N) _Pragma("unroll") for (int k = 0; k < (N); ++k)
#else
#define FOR_VEC(k, N) _Pragma("GCC unroll 1") for (int k = 0; k < (N); ++k)
#endif

// On the host, a Vec is copied by the widest register that it fills. g++ copies a struct by moves of 16 bytes where
// AVX2 is the widest, and a wider load of what several of them stored waits until all have left the store buffer.
#if defined(__CUDACC__)
template <typename T, int N>
TEON_HD void copy_vec(Vec<T, N>* to, const Vec<T, N>* from) {
    *to = *from;
}
#else
#if defined(__AVX512F__)
inline constexpr size_t kRegisterBytes = 64;
#elif defined(__AVX__)
inline constexpr size_t kRegisterBytes = 32;
#else
inline constexpr size_t kRegisterBytes = 16;
#endif
template <typename T, int N>
[[gnu::always_inline]] inline void copy_vec(Vec<T, N>* to, const Vec<T, N>* from) {
    constexpr size_t kBytes = std::min(sizeof(*to), kRegisterBytes);
    typedef char Register [[gnu::vector_size(kBytes), gnu::may_alias]];
    for (size_t i = 0; i < sizeof(*to) / kBytes; ++i)
        reinterpret_cast<Register*>(to)[i] = reinterpret_cast<const Register*>(from)[i];
}
#endif

template <int N, typename T>
TEON_HD Vec<T, N> load_vec(const T* p) {
    Vec<T, N> x;
    copy_vec(&x, reinterpret_cast<const Vec<T, N>*>(p));
    return x;
}
template <int N, typename T>
TEON_HD void store_vec(T* p, const Vec<T, N>& x) {
    copy_vec(reinterpret_cast<Vec<T, N>*>(p), &x);
}

// Rounds N floats to T. On a GPU, one instruction rounds two floats to bf16, or to FP8 if the GPU supports FP8.
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
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
        if constexpr (N % 2 == 0 && sizeof(T) == 1) {
#pragma unroll
        for (int k = 0; k < N; k += 2) {
            const uint16_t two = T::round_two(x[k], x[k + 1]);
            memcpy(&y[k], &two, 2);
        }
    } else
#endif
    {
        FOR_VEC(k, N) y[k] = static_cast<T>(x[k]);
    }
    return y;
}

// Returns whether accesses of W elements are possible: every row starts at a multiple of W elements of T.
template <typename T, int W, typename... P>
bool vec_aligned(int64_t row_length, const P*... pointers) {
    if (row_length % W != 0) return false;
    return ((reinterpret_cast<uintptr_t>(pointers) % (sizeof(P) * W) == 0) && ...);
}

}  // namespace teon
