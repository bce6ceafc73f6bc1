// Rotary position embeddings. Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// cos_sin (positions, HS) float: columns [0, HS/2) the cosines, the others the sines of position * inv_freq[j], where
// inv_freq (HS/2) is on the device. HS even.
void rotary_table(float* cos_sin, const float* inv_freq, int positions, int HS, const Stream& stream);

// Rotates, in place, the NH query and NKV key heads of packed qkv (N, (NH + 2 NKV) * HS); values are left alone.
// Rotate-half convention (Hugging Face's): element j pairs with j + HS/2.
template <typename T>
void rotary_forward(T* qkv, const float* cos_sin, const int* positions, int N, int NH, int NKV, int HS,
                    const Stream& stream);
// The transposed rotation, in place on the gradient of qkv.
template <typename T>
void rotary_backward(T* dqkv, const float* cos_sin, const int* positions, int N, int NH, int NKV, int HS,
                     const Stream& stream);

}  // namespace teon
