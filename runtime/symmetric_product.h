// C = alpha op(A) op(B) + beta addend on tensor cores, for a C that is known to be symmetric (A A^T; polynomials of one
// symmetric matrix, which commute). Only tiles on and below the diagonal are computed; each is written to its own place
// and to the mirrored place. This takes about half the FLOPs of a full product, and no second pass over C.
#pragma once

#include "runtime/device.h"
#include "runtime/gemm.h"

namespace teon {

inline constexpr int kSymmetricTile = 128;

// Returns whether symmetric_product() computes g, a valid symmetric Gemm. A, B and C are all bf16 or all f16, exactly
// one operand is transposed (A A^T or A^T A), and the batch has one level. C's side, the row strides and the batch
// strides are multiples of 8 elements; addresses are multiples of 16 bytes. K is a multiple of 8 if sums run along rows
// of A and B (A A^T). addend is read if beta is not 0; it is C or a matrix that does not overlap C.
bool symmetric_product_supports(const Gemm& g, const Mat& addend);

// Returns whether it is expected to be faster than the library's full product. On sm_90, mma.sync has 62% of the speed
// of the instruction that a library uses, with which the library reaches 80% of the peak: a 128 x 128 tile takes this
// kernel 4/3 of the library's time. So the kernel pays if a multiprocessor has at most 3/4 as many tiles to compute.
bool symmetric_product_pays(int side, int batch, int multiprocessors);

// Computes g. Sums are in float, in an order that depends on K alone; C is symmetric to the last bit. If beta = 0,
// addend is not read.
void symmetric_product(const Gemm& g, const Mat& addend, const Stream& stream);

}  // namespace teon
