// Transposition of matrices of floats or 16-bit elements, through vector registers.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace teon::cpu {

// to(j, i) = from(i, j) for a matrix of rows x columns elements, which does not overlap `to`. Rows of `from` are
// ld_from elements apart, those of `to` ld_to.
void transpose(DType type, void* to, int64_t ld_to, const void* from, int64_t ld_from, int64_t rows, int64_t columns);

// C(i, j) = C(j, i) for j > i, for a matrix of n x n elements whose rows are ld elements apart.
void mirror(DType type, void* C, int64_t ld, int64_t n);

}  // namespace teon::cpu
