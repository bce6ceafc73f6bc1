// The absolute maximum of the tensor that a kernel writes, for the scales of FP8 (fp8.h). Private to kernels/.
//
// Absolute values are compared as the bits of floats, which order as the numbers do, with NaN above infinity. A NaN
// therefore stays, and the result does not depend on the order of comparisons.
#pragma once

#include <algorithm>

#include "kernels/common.h"

namespace teon {

__device__ __forceinline__ int absolute_bits(float x) { return static_cast<int>(float_bits(x) & 0x7fffffffu); }

// The greatest of `maximum_bits` and the absolute values of x, as bits.
template <int W>
__device__ __forceinline__ int greatest(int maximum_bits, const Vec<float, W>& x) {
    FOR_VEC(k, W) maximum_bits = std::max(maximum_bits, absolute_bits(x[k]));
    return maximum_bits;
}

// Raises *to to `maximum_bits`, rounded to T, of each lane. On a GPU all lanes of the warp must call it: one lane acts
// for all, and it reads *to first, which saves most of the atomics because *to only grows. On a CPU each thread acts
// for itself, because a warp-wide maximum would be slower.
template <typename T>
__device__ __forceinline__ void raise_maximum(float* to, int maximum_bits) {
    if constexpr (kGpu) {
        maximum_bits = warp_max(maximum_bits);
        if (threadIdx.x % 32 != 0) return;
    }
    int* at = reinterpret_cast<int*>(to);
    const int rounded = absolute_bits(static_cast<float>(T(bits_float(static_cast<uint32_t>(maximum_bits)))));
    if (!kGpu || *const_cast<volatile int*>(at) < rounded) atomicMax(at, rounded);
}

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock) find_maximum_kernel(float* maximum, const T* x, int64_t n) {
    wait_for_earlier_kernels();
    int maximum_bits = 0;
    for_each_vec<W>(
        n, [&]<int w>(Constant<w>, int64_t i) { maximum_bits = greatest(maximum_bits, load_floats<w>(x + i)); });
    raise_maximum<T>(maximum, maximum_bits);
}

// absolute_maximum() (fp8.h) for any storage type.
template <typename T>
void find_maximum(float* maximum, const T* x, int64_t n, const Stream& stream) {
    at_width<kVecWidth<T>>(vec_aligned<T, kVecWidth<T>>(0, x), [&]<int W>(Constant<W>) {
        launch<find_maximum_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, maximum, x, n);
    });
}

// Calls f(std::true_type) if the kernel that writes the n elements of x is to record their maximum, else
// f(std::false_type), for which the kernel has no code for it. If the kernel cannot record it (FUSED), and always on a
// CPU, where most kernels are then compiled once, a pass of its own finds it. The maximum of float tensors is never
// found: FP8 copies are made of bf16 tensors.
template <typename T, bool FUSED = true, typename F>
void with_maximum(float* maximum, const T* x, int64_t n, const Stream& stream, F f) {
    constexpr bool kRecords = FUSED && kGpu;
    if constexpr (std::is_same_v<T, bf16> && kRecords)
        if (maximum != nullptr) return f(std::true_type());
    f(std::false_type());
    if constexpr (std::is_same_v<T, bf16> && !kRecords)
        if (maximum != nullptr) find_maximum(maximum, x, n, stream);
}

}  // namespace teon
