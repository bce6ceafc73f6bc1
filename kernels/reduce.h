// Sums of whole arrays. Conventions: kernels/ops.h.
#pragma once

#include "runtime/cuda/device.h"

namespace teon {

// out[0] = (accumulate ? out[0] : 0) + the sum of x (n), or of its squares, in float and in a fixed order. n may be 0.
// scratch: reduce_scratch_bytes().
size_t reduce_scratch_bytes();
void reduce_sum(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream);
void reduce_sum_squares(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream);
// sum (n) += x (n). T: float or bf16.
template <typename T>
void add(float* sum, const T* x, int64_t n, const Stream& stream);

}  // namespace teon
