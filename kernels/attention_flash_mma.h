// The forward pass of flash attention with mma, the instruction of sm_80 and later. Private to
// kernels/attention_flash*.
#pragma once

#include "kernels/flash_calls.h"
#include "runtime/device.h"

namespace teon {

void flash_attention_mma_forward(const FlashForward& a, const Stream& stream);

}  // namespace teon
