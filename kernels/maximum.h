// The absolute maximum of the tensor that a kernel writes, for the scales of FP8 (fp8.h). Private to kernels/.
//
// Absolute values are compared as the bits of floats, which order as the numbers do, with NaN above infinity. A NaN
// therefore stays, and the result does not depend on the order of comparisons.
#pragma once

#include "kernels/common.h"

namespace teon {

// Calls f(std::true_type) if a kernel that writes T is to record the maximum, else f(std::false_type), for which the
// kernel has no code for it. Float kernels never record it: FP8 copies are made of bf16 tensors.
template <typename T, typename F>
void with_maximum(const float* maximum, F f) {
    if constexpr (std::is_same_v<T, bf16>)
        if (maximum != nullptr) return f(std::true_type());
    f(std::false_type());
}

__device__ __forceinline__ int absolute_bits(float x) { return static_cast<int>(float_bits(x) & 0x7fffffffu); }

// The greatest of `most` and the absolute values of x, as bits.
template <int W>
__device__ __forceinline__ int greatest(int most, const Vec<float, W>& x) {
    FOR_VEC(k, W) most = std::max(most, absolute_bits(x[k]));
    return most;
}

// Raises *to to `most`, rounded to T, of each lane. On a GPU all lanes of the warp must call it: one lane acts for all,
// and it reads *to first, which saves most of the atomics because *to only grows. On a CPU each thread acts for itself,
// because a warp-wide maximum would be slower.
template <typename T>
__device__ __forceinline__ void raise_maximum(float* to, int most) {
    if constexpr (kGpu) {
        most = warp_max(most);
        if (threadIdx.x % 32 != 0) return;
    }
    int* at = reinterpret_cast<int*>(to);
    const int rounded = absolute_bits(static_cast<float>(T(bits_float(static_cast<uint32_t>(most)))));
    if (!kGpu || *const_cast<volatile int*>(at) < rounded) atomicMax(at, rounded);
}

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock) find_maximum_kernel(float* maximum, const T* x, int64_t n) {
    wait_for_earlier_kernels();
    int most = 0;
    for_each_vec<W>(n, [&]<int w>(Constant<w>, int64_t i) { most = greatest(most, load_floats<w>(x + i)); });
    raise_maximum<T>(maximum, most);
}

// absolute_maximum() (fp8.h) for any storage type.
template <typename T>
void find_maximum(float* maximum, const T* x, int64_t n, const Stream& stream) {
    at_width<kVecWidth<T>>(vec_aligned<T, kVecWidth<T>>(0, x), [&]<int W>(Constant<W>) {
        launch<find_maximum_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, maximum, x, n);
    });
}

}  // namespace teon
