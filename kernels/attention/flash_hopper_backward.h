// The backward pass of flash attention with wgmma, in two passes. Private to kernels/attention/flash*.
#pragma once

#include "kernels/attention/flash_calls.h"
#include "runtime/cuda/device.h"

namespace teon {

// Returns the number of rows that a row of `partial` sums.
int flash_attention_hopper_backward(const FlashBackward& a, const Stream& stream);

}  // namespace teon
