// Causal self-attention on a GPU by batched matrix products, in blocks of query rows. Conventions: kernels/ops.h.
#pragma once

#include <cstddef>

#include "kernels/attention_shape.h"
#include "kernels/dropout_mask.h"
#include "runtime/context.h"

namespace teon {

// What kernels/attention.h says of the functions without "rows". Scratch grows linearly with T, because scores exist
// for one block of query rows at a time.
template <typename T>
size_t attention_rows_scratch_bytes(const AttentionShape& s);
template <typename T>
void attention_rows_forward(T* out, float* lse, void* scratch, const T* qkv, const int* doc_start,
                            const AttentionShape& s, Context& context, const DropoutMask& dropout);
template <typename T>
void attention_rows_backward(T* dqkv, void* scratch, const T* dout, const T* qkv, const T* out, const float* lse,
                             const int* doc_start, const AttentionShape& s, Context& context,
                             const DropoutMask& dropout);

}  // namespace teon
