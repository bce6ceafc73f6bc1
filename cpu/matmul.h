// Matrix products on the CPU, by oneDNN. Matrices are row-major and sums are accumulated in float. The output is
// divided into tiles by its shape alone and one thread computes each tile, so results are bit-equal for any number of
// threads.
#pragma once

#include "base/dtype.h"
#include "cpu/product.h"

namespace teon::cpu {

// Computes the product on the threads of parallel_for and returns when it is done. Does not check its arguments. From
// the second call on with the same shapes, strides, types and factors it allocates nothing.
void matmul(const Matmul& m);

// Computes a product whose result is known to be symmetric, as is the addend (A A^T; polynomials of one symmetric
// matrix), in tiles on and below the diagonal, each of which is then mirrored: C is symmetric to the last bit. The two
// halves of a full product may be rounded differently, after which powers of a matrix do not commute and Newton-Schulz
// in Gram form loses two bits. No bias.
void matmul_symmetric(const Matmul& m);

// Computes the product of FP8 operands, every value of which bf16 holds exactly, times `scale`. A has type `a` and is
// not transposed; B has type `b` and is transposed; there is no batch. Ignores m.in and m.alpha_varies.
void matmul_fp8(Matmul m, DType a, DType b, float scale);

}  // namespace teon::cpu
