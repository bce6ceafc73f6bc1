// Private to kernels/attention_flash_backward*.cu.
#pragma once

#include "kernels/flash_backward.h"

namespace teon {

// The gradient in one pass, for head size 64 and without documents. sums (heads_in_flight, NH / NKV, T rounded up to
// kOnePassRows, HS) is scratch.
inline constexpr int kOnePassHeadSize = 64, kOnePassRows = 128;
inline constexpr int kOnePassWarpRows = 32;           // rows of a row of `partial` (flash_column_sums)
inline constexpr size_t kOnePassShared = 163 * 1024;  // bytes for a block; the limit of sm_80
void flash_attention_backward_one_pass(bf16* dqkv, float* partial, float* sums, const bf16* dout, const bf16* qkv,
                                       const RowStats* stats, const AttentionShape& s, int heads_in_flight,
                                       const Stream& stream);

}  // namespace teon
