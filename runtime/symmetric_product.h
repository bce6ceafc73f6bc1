// C = alpha op(A) op(B) + beta addend where C is known to be symmetric (A A^T; polynomials of one symmetric matrix,
// which commute), on tensor cores: tiles on and below the diagonal only, each written to its place and mirrored. About
// half the FLOPs of a full product, and no second pass over C.
#pragma once

#include "runtime/device.h"
#include "runtime/gemm.h"

namespace teon {

inline constexpr int kSymmetricTile = 128;

// Whether symmetric_product() computes g, a valid symmetric Gemm: bf16 or f16, C too; one operand transposed (A A^T or
// A^T A), one level of batch; C's side, row strides and batch strides multiples of 8 elements, addresses of 16 bytes, K
// a multiple of 8 where rows of A and B are summed along (A A^T). addend: what is read where beta is not 0; C, or a
// matrix apart from it.
bool symmetric_product_supports(const Gemm& g, const Mat& addend);

// Whether it is expected to be faster than the library's full product. mma.sync has 62% of the speed of what a library
// uses on sm_90, where the library has 80% of the peak: 128 x 128 tiles take it 4/3 of the time. So it pays where a
// multiprocessor has at most 3/4 as many tiles to do.
bool symmetric_product_pays(int side, int batch, int multiprocessors);

// Sums in float, in an order that depends on K alone; C is symmetric to the last bit. beta = 0 reads no addend.
void symmetric_product(const Gemm& g, const Mat& addend, const Stream& stream);

}  // namespace teon
