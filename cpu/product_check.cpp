#include "cpu/product_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "cpu/instructions.h"

namespace teon::cpu {

namespace {

double element(const void* matrix, DType type, int64_t at) {
    double x = 0;
    visit_dtype(type,
                [&]<typename T>(T) { x = static_cast<double>(static_cast<float>(static_cast<const T*>(matrix)[at])); });
    return x;
}

// The sum over K of one element, the sum of its terms' absolute values, and what CPUs lose that take subnormal operands
// for zero, as the instructions for bf16 do.
struct Sum {
    double value = 0, size = 0, subnormal = 0;
};

Sum sum_of(const ProductKind& k, const void* a, const void* b, int64_t row, int64_t column) {
    constexpr double kNormal = std::numeric_limits<float>::min();
    Sum sum;
    for (int64_t i = 0; i < k.K; ++i) {
        const double x = element(a, k.in, k.trans_a ? i * k.lda + row : row * k.lda + i);
        const double y = element(b, k.in, k.trans_b ? column * k.ldb + i : i * k.ldb + column);
        sum.value += x * y;
        sum.size += std::abs(x * y);
        if (std::abs(x) < kNormal || std::abs(y) < kNormal) sum.subnormal += std::abs(x * y);
    }
    return sum;
}

// The largest relative and absolute error of rounding to a type.
double relative_rounding(DType type) {
    if (type == DType::bf16) return 0x1p-8;
    return type == DType::f16 ? 0x1p-11 : 0x1p-24;
}
double absolute_rounding(DType type) { return type == DType::f16 ? 0x1p-24 : 0x1p-126; }
double largest(DType type) {
    return type == DType::f16 ? 65504.0 : 0.99 * static_cast<double>(std::numeric_limits<float>::max());
}

}  // namespace

ProductCheck::ProductCheck(const ProductKind& kind, const void* c)
    : kind_(kind),
      rows_{0, kind.M / 2, kind.M - 1},
      columns_{0, kind.N / 3, kind.N / 2, std::max<int64_t>(kind.N - 2, 0), kind.N - 1},
      before_{} {
    if (kind.beta == 0.0f) return;
    for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kColumns; ++j)
            before_[i * kColumns + j] = element(c, kind.out, rows_[i] * kind.ldc + columns_[j]);
}

Comparison ProductCheck::compare(const void* a, const void* b, const void* c, const void* bias) const {
    const ProductKind& k = kind_;
    Comparison comparison = Comparison::says_nothing;
    for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kColumns; ++j) {
            const int64_t row = rows_[i];
            const int64_t column = columns_[j];
            const Sum sum = sum_of(k, a, b, row, column);
            const double scale = static_cast<double>(k.alpha);
            const double added = k.beta == 0.0f ? 0.0 : static_cast<double>(k.beta) * before_[i * kColumns + j];
            const double shift = bias ? element(bias, k.out, column) : 0.0;
            const double expected = scale * sum.value + added + shift;
            const double size = std::abs(scale) * sum.size + std::abs(added) + std::abs(shift);
            const double limit = largest(k.out);
            if (!(sum.size < limit && size < limit)) continue;  // or NaN
            // Sums of K terms in float, in any order (Higham, Accuracy and Stability, section 4.2), twice.
            const double terms = static_cast<double>(k.K + 3);
            const double tolerance = terms * 0x1p-23 * size + relative_rounding(k.out) * std::abs(expected) +
                                     absolute_rounding(k.out) + std::abs(scale) * (sum.subnormal + terms * 0x1p-126);
            const double result = element(c, k.out, row * k.ldc + column);
            if (sum.size > 0) comparison = Comparison::agrees;
            if (std::abs(result - expected) <= tolerance) continue;
            throw Error(fmt::format(
                "{} multiplies {} x {} x {} (M x N x K{}{}) {} matrices wrongly on this CPU: element ({}, {}) is "
                "{:.9g} "
                "instead of {:.9g}; {}",
                matmul_library(), k.M, k.N, k.K, k.trans_a ? ", A transposed" : "", k.trans_b ? ", B transposed" : "",
                name_of(k.in), row, column, result, expected, matmul_remedy()));
        }
    }
    return comparison;
}

}  // namespace teon::cpu
