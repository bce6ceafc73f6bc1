// Symmetric products with wgmma, the instruction of sm_90a. Private to runtime/symmetric_product*.
#pragma once

#include "runtime/device.h"
#include "runtime/gemm.h"

namespace teon {

// Whether this device and program have the kernels.
bool symmetric_hopper_has_code();
// Whether tensor maps can describe A and B of g, which symmetric_product_supports().
bool symmetric_hopper_supports(const Gemm& g);
void symmetric_product_hopper(const Gemm& g, const Mat& addend, const Stream& stream);

// The pairs of tiles, one above the other, of which at least one is on or below the diagonal; with an odd number of
// rows of tiles also one outside of C. A block computes one.
int64_t symmetric_hopper_pairs(int side);

}  // namespace teon
