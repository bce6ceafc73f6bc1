// Causal self-attention by matrix products. Conventions: kernels/ops.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/dropout_mask.h"
#include "runtime/context.h"

namespace teon {

// Causal self-attention. Head h of the NH query heads uses key/value head h / (NH / NKV). Scores are scaled by
// 1 / sqrt(HS). doc_start (B, T), or nullptr for 0 everywhere: row t sees the keys t' with doc_start[t] <= t' <= t.
struct AttentionShape {
    int B, T, NH, NKV, HS;
    int64_t qkv_width() const { return static_cast<int64_t>(NH + 2 * NKV) * HS; }
};

// out (B, T, NH * HS); lse (B, NH, T): natural logarithm of the sum of exp of the scaled visible scores.
// qkv (B, T, (NH + 2 NKV) * HS): query heads, then key heads, then value heads. Scratch grows linearly with T, because
// scores exist for one block of query rows at a time; it suffices for any smaller B and T. Throws Error for dimensions
// below 1 and for an NH that is not a multiple of NKV. dropout is applied to the probabilities: the mask's rows are
// h * T + t, its columns keys.
size_t attention_scratch_bytes(const AttentionShape& s, DType dtype);
template <typename T>
void attention_forward(T* out, float* lse, void* scratch, const T* qkv, const int* doc_start, const AttentionShape& s,
                       Context& context, const DropoutMask& dropout = {});
// dqkv = the gradient of qkv; recomputes the softmax from lse, and the mask. dqkv must not alias qkv.
template <typename T>
void attention_backward(T* dqkv, void* scratch, const T* dout, const T* qkv, const T* out, const float* lse,
                        const int* doc_start, const AttentionShape& s, Context& context,
                        const DropoutMask& dropout = {});

}  // namespace teon
