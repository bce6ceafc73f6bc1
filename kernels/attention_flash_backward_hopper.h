// The backward pass of flash attention with wgmma, in two passes. Private to kernels/attention_flash*.
#pragma once

#include "kernels/flash_calls.h"
#include "runtime/device.h"

namespace teon {

// Returns the number of rows that a row of `partial` sums.
int flash_attention_hopper_backward(const FlashBackward& a, const Stream& stream);

}  // namespace teon
