// Causal self-attention by matrix products: in blocks of rows on a GPU, in tiles on a CPU. Conventions: kernels/ops.h.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "kernels/attention/shape.h"
#include "kernels/dropout_mask.h"
#include "runtime/context.h"
#include "runtime/vec.h"

namespace teon {

// out (B, T, NH * HS); lse (B, NH, T): natural logarithm of the sum of exp of the scaled visible scores.
// qkv (B, T, (NH + 2 NKV) * HS): query heads, then key heads, then value heads. Scratch grows linearly with T, and
// suffices for any smaller B and T. on_gpu: what a GPU needs, which a CPU plans too. On a CPU scratch is that of one
// task for each thread; a task is a block of rows of a head or, backward, a key/value head; and a sequence's bits do
// not depend on B. Throws Error for dimensions below 1 and for an NH that is not a multiple of NKV. dropout is applied
// to the probabilities: the mask's rows are h * T + t, its columns keys.
size_t attention_scratch_bytes(const AttentionShape& s, DType dtype, bool on_gpu = kGpu);
template <typename T>
void attention_forward(T* out, float* lse, void* scratch, const T* qkv, const int* first_key, const AttentionShape& s,
                       Context& context, const DropoutMask& dropout = {});
// dqkv = the gradient of qkv; recomputes the softmax from lse, and the mask. dqkv must not alias qkv.
template <typename T>
void attention_backward(T* dqkv, void* scratch, const T* dout, const T* qkv, const T* out, const float* lse,
                        const int* first_key, const AttentionShape& s, Context& context,
                        const DropoutMask& dropout = {});

}  // namespace teon
