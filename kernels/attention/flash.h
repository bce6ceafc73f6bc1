// Causal self-attention on tensor cores. Conventions: kernels/ops.h.
#pragma once

#include "base/dtype.h"
#include "kernels/attention/attention.h"
#include "runtime/cuda/device.h"

namespace teon {

// The functions of kernels/attention/attention.h on tensor cores, with the same tensors. Only for bf16 and head sizes
// 64 and 128; tensors must be 16-byte aligned (both else Error), and first_key must not decrease along T. No T x T
// scores exist: scratch holds statistics of each row. lse equals that of attention_forward to rounding, so that either
// backward pass may follow either forward pass.
//
// dbias (qkv_width()), or nullptr: the column sums of dqkv before rounding; += if accumulate, else =. Scratch for a
// dbias has sums_columns = true.
bool flash_attention_supports(const AttentionShape& s, DType dtype);
bool flash_attention_is_fast();  // false on the host, which emulates tensor-core instructions
size_t flash_attention_scratch_bytes(const AttentionShape& s, bool sums_columns = false);
void flash_attention_forward(bf16* out, float* lse, const bf16* qkv, const int* first_key, const AttentionShape& s,
                             const Stream& stream);
void flash_attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                              const float* lse, const int* first_key, const AttentionShape& s, const Stream& stream,
                              float* dbias = nullptr, bool accumulate = false);

}  // namespace teon
