// The forward pass of flash attention on sm_90a. Private to kernels/attention_flash*.cu.
#pragma once

#include "kernels/flash_shape.h"
#include "runtime/device.h"

namespace teon {

// For head sizes of 64 and 128: whether this device and program have it, and with it the backward pass; then what
// flash_attention_forward does of B sequences, equal to rounding.
template <int HS>
bool flash_attention_hopper_runs();
template <int HS>
void flash_attention_hopper_forward(bf16* out, float* lse, const bf16* qkv, const FlashShape<HS>& s, int B,
                                    const Stream& stream);

}  // namespace teon
