// The forward pass of flash attention with mma, the instruction of sm_80 and later. Private to
// kernels/attention/flash*.
#pragma once

#include "kernels/attention/flash_calls.h"
#include "runtime/cuda/device.h"

namespace teon {

void flash_attention_mma_forward(const FlashForward& a, const Stream& stream);

}  // namespace teon
