// RMSNorm of queries and keys. Conventions: kernels/ops.h.
#pragma once

#include "runtime/cuda/device.h"

namespace teon {

// The vectors of a packed row: `queries` vectors of q_width elements and `keys` vectors of k_width elements, which are
// normalized, and as many values as keys, which are not. To normalize each head: {NH, NKV, HS, HS}; to normalize all
// heads together: {1, 1, NH * HS, NKV * HS}. q_width must be a multiple of k_width.
struct QkVectors {
    int queries, keys, q_width, k_width;
    constexpr int normed() const { return queries + keys; }
    constexpr int all() const { return queries + 2 * keys; }
    constexpr int row_width() const { return queries * q_width + 2 * keys * k_width; }
    constexpr int weights() const { return q_width + k_width; }
};

// out (N, row_width) = packed qkv x (N, row_width) with RMSNorm applied to each query and key vector, with the weights
// q_weight (q_width) and k_weight (k_width); values are copied. rstd (N, queries + keys) is an output. out must not
// alias x.
template <typename T>
void qk_norm_forward(T* out, float* rstd, const T* x, const T* q_weight, const T* k_weight, int N,
                     const QkVectors& vectors, float eps, const Stream& stream);
// Replaces the gradient of out in dqkv (N, row_width) by the gradient of x. dq_weight (q_width), dk_weight (k_width),
// float: += if accumulate, else =. scratch: qk_norm_backward_scratch_bytes(N, vectors).
size_t qk_norm_backward_scratch_bytes(int N, const QkVectors& vectors);
template <typename T>
struct QkNormBackward {
    T* dqkv;
    float* dq_weight;
    float* dk_weight;
    void* scratch;
    const T* x;
    const float* rstd;
    const T* q_weight;
    const T* k_weight;
    int N;
    bool accumulate;
};
template <typename T>
void qk_norm_backward(const QkNormBackward<T>& a, const QkVectors& vectors, const Stream& stream);

}  // namespace teon
