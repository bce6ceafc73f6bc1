// Causal self-attention on tensor cores. Conventions: kernels/ops.h.
#pragma once

#include "base/dtype.h"
#include "kernels/attention.h"
#include "runtime/device.h"

namespace teon {

// The functions of kernels/attention.h on tensor cores, with the same tensors. Only for bf16 and head sizes 64 and 128;
// tensors must be 16-byte aligned (both else Error), and doc_start must not decrease along T. No T x T scores exist:
// scratch holds statistics of each row. lse equals that of attention_forward to rounding, so that either backward pass
// may follow either forward pass.
//
// The backward pass with one_pass_heads = 0 makes two passes with seven products in total. With one_pass_heads > 0 it
// makes one pass of five products in that many blocks. Each block processes one key/value head after the other and
// accumulates dQ in float in its own part of scratch. One pass needs a head size of 64 (else Error), and two passes are
// made all the same if there are documents. Any number of blocks gives the same bits.
//
// dbias (qkv_width()), or nullptr: the column sums of dqkv before rounding; += if accumulate, else =. Scratch for a
// dbias has sums_columns = true.
bool flash_attention_supports(const AttentionShape& s, DType dtype);
bool flash_attention_is_fast();  // false on the host, which emulates tensor-core instructions
// Returns one_pass_heads for a device with `multiprocessors` (flash_attention_one_pass_multiprocessors): that number if
// one pass takes less time, else 0. By docs/gpu_step.md's count it does from T = 1024 on, unless the multiprocessors
// would be idle for more than an eighth of the time because the last heads do not fill them.
int flash_attention_one_pass_heads(const AttentionShape& s, int multiprocessors);
// Returns 0 if a block of the one pass does not fit, and on sm_90, where two passes by wgmma take less time.
int flash_attention_one_pass_multiprocessors(const DeviceInfo& device);
size_t flash_attention_scratch_bytes(const AttentionShape& s, int one_pass_heads = 0, bool sums_columns = false);
void flash_attention_forward(bf16* out, float* lse, const bf16* qkv, const int* doc_start, const AttentionShape& s,
                             const Stream& stream);
void flash_attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                              const float* lse, const int* doc_start, const AttentionShape& s, const Stream& stream,
                              int one_pass_heads = 0, float* dbias = nullptr, bool accumulate = false);

}  // namespace teon
