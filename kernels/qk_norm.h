// RMSNorm of each query and key head. Conventions: kernels/ops.h.
#pragma once

#include <cstddef>

#include "runtime/device.h"

namespace teon {

// out = packed qkv x (N, (NH + 2 NKV) * HS) with each query head and each key head normalized over its HS elements, as
// rmsnorm has it, with the weights q_weight and k_weight (HS); values are copied. rstd (N, NH + NKV). out must not be
// x.
template <typename T>
void qk_norm_forward(T* out, float* rstd, const T* x, const T* q_weight, const T* k_weight, int N, int NH, int NKV,
                     int HS, float eps, const Stream& stream);
// From the gradient of out to that of x, in place. dq_weight, dk_weight (HS) float: += if accumulate, else =. scratch:
// qk_norm_backward_scratch_bytes(N, HS).
size_t qk_norm_backward_scratch_bytes(int N, int HS);
template <typename T>
void qk_norm_backward(T* dqkv, float* dq_weight, float* dk_weight, void* scratch, const T* x, const float* rstd,
                      const T* q_weight, const T* k_weight, int N, int NH, int NKV, int HS, bool accumulate,
                      const Stream& stream);

}  // namespace teon
