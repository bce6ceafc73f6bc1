// Sums of a whole array. Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// out[0] = (accumulate ? out[0] : 0) + sum of x (or of its squares), in float with fixed order. scratch:
// reduce_scratch_bytes().
size_t reduce_scratch_bytes();
void reduce_sum(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream);
void reduce_sum_squares(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream);
// sum (n) += x (n). T: float or bf16.
template <typename T>
void add(float* sum, const T* x, int64_t n, const Stream& stream);

}  // namespace teon
