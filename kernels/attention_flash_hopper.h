// Flash attention on sm_90a. Private to kernels/attention_flash*.cu.
#pragma once

#include "kernels/flash_backward.h"
#include "runtime/device.h"

namespace teon {

// For head sizes of 64 and 128: whether this device and program have it; then what flash_attention_forward does of B
// sequences, and flash_attention_backward in two passes, given the statistics. Both agree with those to rounding.
template <int HS>
bool flash_attention_hopper_runs();
template <int HS>
void flash_attention_hopper_forward(bf16* out, float* lse, const bf16* qkv, const FlashShape<HS>& s, int B,
                                    const Stream& stream);
template <int HS>
void flash_attention_hopper_backward(bf16* dqkv, const bf16* dout, const bf16* qkv, const RowStats* stats,
                                     const FlashShape<HS>& s, int B, const Stream& stream);

}  // namespace teon
