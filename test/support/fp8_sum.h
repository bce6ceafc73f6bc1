// The accuracy of sums of FP8 products.
#pragma once

#include "test/oracle/tracked.h"
#include "test/support/compare.h"
#include "test/support/gemm_layout.h"
#include "test/support/on_gpu.h"

namespace teon::test {

// A sum of FP8 products with the error that its device may make. Hopper's tensor cores keep about 14 bits of such a sum
// (DeepSeek-V3's report, arXiv 2412.19437, section 3.3.2), which an H200 confirmed; CPUs sum in float.
inline Tracked fp8_sum(Tracked sum) {
    if (on_gpu()) sum.magnitude *= 0x1p-13 / kUnitRoundoff<float> / kSumRoundings;
    return sum;
}

}  // namespace teon::test
