// The calls that implementations of flash attention answer; their tensors are those of kernels/attention/flash.h.
// Private to kernels/attention/flash*.
#pragma once

#include "base/dtype.h"
#include "kernels/attention/attention.h"
#include "kernels/common.h"

namespace teon {

// The statistics of a query row that the backward passes need: log2(e) lse and D.
using RowStats = Vec<float, 2>;

struct FlashForward {
    bf16* out;
    float* lse;
    const bf16* qkv;
    const int* first_key;
    AttentionShape shape;
};

// partial: column sums of dqkv, one row for each few rows of a sequence (flash_column_sums), or nullptr.
struct FlashBackward {
    bf16* dqkv;
    float* partial;
    const bf16* dout;
    const bf16* qkv;
    const RowStats* stats;
    const int* first_key;
    AttentionShape shape;
};

}  // namespace teon
