// The forward pass of flash attention on sm_90a. Private to kernels/attention_flash*.cu.
#pragma once

#include "kernels/flash_shape.h"
#include "runtime/device.h"

namespace teon {

// For head sizes 64 and 128: whether this device and program have the passes for sm_90a, forward and backward; and
// flash_attention_forward for B sequences, equal to rounding.
template <int HS>
bool flash_attention_hopper_runs();
template <int HS>
void flash_attention_hopper_forward(bf16* out, float* lse, const bf16* qkv, const FlashShape<HS>& s, int B,
                                    const Stream& stream);

}  // namespace teon
