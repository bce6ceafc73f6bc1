// The accuracy of sums of products on a GPU.
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

// The sum of a product, beta times the addend and a bias, which cuBLASLt on a GPU may add in any order and may round to
// T in between: an H200 did so in products with bf16 outputs.
template <typename T>
Tracked sum_of(Tracked product, Tracked addend, Tracked bias) {
    Tracked sum = product + addend + bias;
    if (on_gpu() && (addend.value != 0 || bias.value != 0))
        sum.magnitude +=
            kUnitRoundoff<T> / kUnitRoundoff<float> / kSumRoundings *
            (std::abs(product.value) + std::abs((product + addend).value) + std::abs((product + bias).value));
    return sum;
}

}  // namespace teon::test
