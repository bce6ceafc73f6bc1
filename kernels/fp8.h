// FP8 copies of bf16 tensors, for products. A tensor has one scale, from the absolute maximum that it has just then
// (docs/fp8.md). Conventions: kernels/ops.h.
#pragma once

#include "runtime/device.h"

namespace teon {

// *maximum = the greater of itself and of the absolute values of x (n elements). NaN is greater than infinity, so that
// it stays. Writers of bf16 tensors do likewise where they take a `maximum`; it begins as 0.
void absolute_maximum(float* maximum, const bf16* x, int64_t n, const Stream& stream);

// y (rows, cols) = x s and transposed (cols, rows) = x^T s, rounded to F (e4m3, e5m2), either may be nullptr; *scale =
// 1 / s. x (rows, cols). s = F's largest number / *maximum, so that no element is beyond it; 1 where the maximum is 0,
// and at most the largest float. A maximum of infinity or NaN makes each infinity and NaN of x, and every sum with
// *scale, NaN.
template <typename F>
void cast_fp8(F* y, F* transposed, float* scale, const bf16* x, const float* maximum, int rows, int cols,
              const Stream& stream);

}  // namespace teon
