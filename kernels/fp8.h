// FP8 copies of bf16 tensors, for matrix products. A tensor has one scale, which comes from its current absolute
// maximum (docs/fp8.md). Conventions: kernels/ops.h.
#pragma once

#include "runtime/cuda/device.h"

namespace teon {

// Raises *maximum to the greatest absolute value of x (n elements). NaN counts as greater than infinity, so that it
// stays. Operations with an argument `maximum` do the same for the bf16 tensor that they write. The caller sets
// *maximum to 0 first.
void absolute_maximum(float* maximum, const bf16* x, int64_t n, const Stream& stream);

// y (rows, cols) = x s and transposed (cols, rows) = x^T s, rounded to F (e4m3 or e5m2); either may be nullptr.
// x (rows, cols). *scale = 1 / s, where s = F's largest number / *maximum, so that every element is in F's range; s = 1
// if *maximum is 0, and s is at most the largest float. If *maximum is infinity or NaN, infinities and NaNs of x become
// NaN, and so does every product of *scale and an element.
template <typename F>
void cast_fp8(F* y, F* transposed, float* scale, const bf16* x, const float* maximum, int rows, int cols,
              const Stream& stream);

}  // namespace teon
