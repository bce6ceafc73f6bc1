// The forward pass of flash attention with wgmma, the instruction of sm_90a. Private to kernels/attention/flash*.
#pragma once

#include "kernels/attention/flash_calls.h"
#include "runtime/cuda/device.h"

namespace teon {

// Whether this device and program have the passes for sm_90a, forward and backward.
bool flash_attention_hopper_has_code(int head_size);
void flash_attention_hopper_forward(const FlashForward& a, const Stream& stream);

}  // namespace teon
