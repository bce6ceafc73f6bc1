// Absolute maxima of what a kernel writes, for the scales of FP8 (fp8.h). Private to kernels/.
//
// They are compared as the bits of floats without sign, which order as the numbers do, with NaN above infinity: a NaN
// stays, and the result does not depend on any order.
#pragma once

#include "kernels/common.h"

namespace teon {

__device__ __forceinline__ int absolute_bits(float x) { return static_cast<int>(float_bits(x) & 0x7fffffffu); }

// The greater of `most` and of the absolute values of x.
template <int W>
__device__ __forceinline__ int greatest(int most, const Vec<float, W>& x) {
    FOR_VEC(k, W) most = std::max(most, absolute_bits(x[k]));
    return most;
}

// *to = the greater of itself and of `most`, rounded to T, of all lanes of a warp, which must all be there. As it only
// grows, a GPU reads it first, which saves most of the atomics. A CPU's threads need no warp, which would be slower.
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

}  // namespace teon
