// The backward pass of flash attention with mma, the instruction of sm_80 and later. Private to
// kernels/attention/flash*.
#pragma once

#include "kernels/attention/flash_calls.h"
#include "runtime/cuda/device.h"

namespace teon {

// Returns the number of rows that a row of `partial` sums.
int flash_attention_mma_backward(const FlashBackward& a, const Stream& stream);

}  // namespace teon
