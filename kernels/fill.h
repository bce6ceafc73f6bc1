// Initialization and casts. Conventions: kernels/ops.h.
#pragma once

#include "runtime/cuda/device.h"

namespace teon {

// x (rows, cols) = normal(0, std) in its first logical_rows x logical_cols elements, 0 elsewhere. The number at (i, j)
// depends only on (seed, tensor, i * logical_cols + j): Philox4x32-10 (Salmon et al. 2011) and Box-Muller. Throws Error
// if the logical size is larger than the size.
void fill_normal(float* x, int rows, int cols, int logical_rows, int logical_cols, float std, uint64_t seed,
                 uint64_t tensor, const Stream& stream);
// The same with `value` in place of the normal numbers.
void fill_constant(float* x, int rows, int cols, int logical_rows, int logical_cols, float value, const Stream& stream);
// dst (n) = src (n), rounded to Dst. Each type is float, bf16 or f16.
template <typename Dst, typename Src>
void cast(Dst* dst, const Src* src, int64_t n, const Stream& stream);

}  // namespace teon
