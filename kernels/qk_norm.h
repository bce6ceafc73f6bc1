// RMSNorm of queries and keys. Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// A packed row of queries, keys and values as the vectors that are normalized: `queries` of q_width elements, `keys` of
// k_width, and as many values as keys, which are left alone. Of each head: {NH, NKV, HS, HS}; of all heads together:
// {1, 1, NH * HS, NKV * HS}. q_width is a multiple of k_width.
struct QkVectors {
    int queries, keys, q_width, k_width;
    constexpr int normed() const { return queries + keys; }
    constexpr int all() const { return queries + 2 * keys; }
    constexpr int row_width() const { return queries * q_width + 2 * keys * k_width; }
    constexpr int weights() const { return q_width + k_width; }
};

// out = packed qkv x (N, row_width) with each query and key vector normalized, as rmsnorm has it, with the weights
// q_weight (q_width) and k_weight (k_width); values are copied. rstd (N, queries + keys). out must not be x.
template <typename T>
void qk_norm_forward(T* out, float* rstd, const T* x, const T* q_weight, const T* k_weight, int N,
                     const QkVectors& vectors, float eps, const Stream& stream);
// From the gradient of out to that of x, in place. dq_weight (q_width), dk_weight (k_width) float: += if accumulate,
// else =. scratch: qk_norm_backward_scratch_bytes(N, vectors).
size_t qk_norm_backward_scratch_bytes(int N, const QkVectors& vectors);
template <typename T>
void qk_norm_backward(T* dqkv, float* dq_weight, float* dk_weight, void* scratch, const T* x, const float* rstd,
                      const T* q_weight, const T* k_weight, int N, const QkVectors& vectors, bool accumulate,
                      const Stream& stream);

}  // namespace teon
