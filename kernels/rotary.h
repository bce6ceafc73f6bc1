// Rotary position embeddings. Conventions: kernels/ops.h.
#pragma once

#include "runtime/cuda/device.h"

namespace teon {

// cos_sin (positions, HS), float: the cosines of position * inv_freq[j] in columns [0, HS/2), the sines in the others,
// times `size`. inv_freq (HS/2) is on the device. Throws Error if HS is odd.
void rotary_table(float* cos_sin, const float* inv_freq, int positions, int HS, float size, const Stream& stream);

// Rotates the NH query and NKV key heads of packed qkv (N, (NH + 2 NKV) * HS) in place and leaves the values unchanged.
// positions (N). Element j of a head pairs with j + HS/2 ("rotate half", Hugging Face's convention). Throws Error if HS
// is odd.
template <typename T>
void rotary_forward(T* qkv, const float* cos_sin, const int* positions, int N, int NH, int NKV, int HS,
                    const Stream& stream);
// The transposed rotation (not the inverse, unless size is 1), in place on the gradient of qkv.
template <typename T>
void rotary_backward(T* dqkv, const float* cos_sin, const int* positions, int N, int NH, int NKV, int HS,
                     const Stream& stream);

}  // namespace teon
