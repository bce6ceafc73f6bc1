// The backward pass of flash attention on sm_90a, in two passes. Private to kernels/attention_flash*.cu.
#pragma once

#include "kernels/flash_backward.h"
#include "runtime/device.h"

namespace teon {

inline constexpr int kHopperWarpRows = 16;  // of which partial has column sums (flash_column_sums)

// For head sizes of 64 and 128, where flash_attention_hopper_runs(): what flash_attention_backward does of B sequences,
// given the statistics, equal to rounding.
template <int HS>
void flash_attention_hopper_backward(bf16* dqkv, float* partial, const bf16* dout, const bf16* qkv,
                                     const RowStats* stats, const FlashShape<HS>& s, int B, const Stream& stream);

}  // namespace teon
