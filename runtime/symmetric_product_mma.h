// Symmetric products with mma.sync, for every GPU. Private to runtime/symmetric_product*.
#pragma once

#include "runtime/device.h"
#include "runtime/gemm.h"

namespace teon {

void symmetric_product_mma(const Gemm& g, const Mat& addend, const Stream& stream);

// The tiles of 128 x 128 elements on and below the diagonal. A block computes one.
int64_t symmetric_mma_tiles(int side);

}  // namespace teon
