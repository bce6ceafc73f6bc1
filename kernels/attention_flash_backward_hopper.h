// The backward pass of flash attention on sm_90a, in two passes. Private to kernels/attention_flash*.cu.
#pragma once

#include "kernels/flash_backward.h"
#include "runtime/device.h"

namespace teon {

inline constexpr int kHopperWarpRows = 16;  // rows of a row of `partial` (flash_column_sums)

// For head sizes 64 and 128, if flash_attention_hopper_runs(): flash_attention_backward for B sequences, after the
// rows' statistics, equal to rounding.
template <int HS>
void flash_attention_hopper_backward(bf16* dqkv, float* partial, const bf16* dout, const bf16* qkv,
                                     const RowStats* stats, const FlashShape<HS>& s, int B, const Stream& stream);

}  // namespace teon
