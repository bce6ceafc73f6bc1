// Attention in tiles, for builds for CPUs only: scores exist as one tile for each thread. attention.h has the tensors;
// private to attention.cu.
#pragma once

#include <cstddef>

#include "kernels/attention/shape.h"
#include "kernels/dropout_mask.h"
#include "runtime/context.h"

namespace teon {

template <typename T>
size_t attention_tiled_scratch_bytes(const AttentionShape& s);
template <typename T>
void attention_tiled_forward(T* out, float* lse, void* scratch, const T* qkv, const int* first_key,
                             const AttentionShape& s, Context& context, const DropoutMask& dropout);
template <typename T>
void attention_tiled_backward(T* dqkv, void* scratch, const T* dout, const T* qkv, const T* out, const float* lse,
                              const int* first_key, const AttentionShape& s, Context& context,
                              const DropoutMask& dropout);

}  // namespace teon
