// Causal self-attention on tensor cores. Conventions: kernels/ops.h.
#pragma once

#include "base/dtype.h"
#include "kernels/attention.h"
#include "runtime/device.h"

namespace teon {

// The same functions of the same tensors, on tensor cores: bf16, head sizes 64 and 128 only, tensors 16-byte aligned,
// and doc_start must not decrease along T. Scratch is what the backward pass notes of each row; no T x T scores exist.
// lse is that of attention_forward to rounding, so that either backward pass may follow either forward pass.
//
// one_pass_heads = 0: the backward pass takes two passes of seven products together. More: one pass of five products,
// in so many blocks, each of which walks one key/value head after the other and adds dQ in float in scratch of its own;
// only for a head size of 64 (else Error), and where there are documents it is two passes all the same. The number
// changes no bit.
//
// dbias (qkv_width()), or nullptr: the column sums of dqkv before it is rounded, += if accumulate, else =.
bool flash_attention_supports(const AttentionShape& s, DType dtype);
bool flash_attention_is_fast();  // false on the host, which executes tensor-core instructions one by one
// What one_pass_heads should be on a device with so many multiprocessors for such blocks: as many, where one pass pays.
// By docs/gpu_step.md's count it does from T = 1024 on, unless more than an eighth of their time would be lost because
// the last heads do not fill them.
int flash_attention_one_pass_heads(const AttentionShape& s, int multiprocessors);
// 0 where a block does not fit, and on sm_90, where two passes by wgmma take less time.
int flash_attention_one_pass_multiprocessors(const DeviceInfo& device);
// sums_columns: for a dbias.
size_t flash_attention_scratch_bytes(const AttentionShape& s, int one_pass_heads = 0, bool sums_columns = false);
void flash_attention_forward(bf16* out, float* lse, const bf16* qkv, const int* doc_start, const AttentionShape& s,
                             const Stream& stream);
void flash_attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                              const float* lse, const int* doc_start, const AttentionShape& s, const Stream& stream,
                              int one_pass_heads = 0, float* dbias = nullptr, bool accumulate = false);

}  // namespace teon
