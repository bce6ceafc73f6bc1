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

// Computes the product of FP8 operands, every value of which bf16 holds exactly, times `scale`. A has type `a` and is
// not transposed; B has type `b` and is transposed; there is no batch. Ignores m.in and m.alpha_varies.
void matmul_fp8(Matmul m, DType a, DType b, float scale);

}  // namespace teon::cpu
