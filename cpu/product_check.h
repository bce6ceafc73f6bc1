// Compares the first product of each kind with its definition. oneDNN generates code per shape, and a version's code
// for some shapes has been wrong on some CPUs (2.6.3 in bf16 on AMX).
#pragma once

#include <array>
#include <compare>
#include <cstdint>

#include "base/dtype.h"

namespace teon::cpu {

// A kind of product: the parameters for which oneDNN generates code.
//   C (M x N) = alpha op(A) (M x K) op(B) (K x N) + beta C + bias
struct ProductKind {
    int64_t M, N, K;
    bool trans_a, trans_b;
    DType in, out;
    int64_t lda, ldb, ldc;
    float alpha, beta;  // beta: factor of C's previous content
    bool bias;          // only with alpha = 1
    auto operator<=>(const ProductKind&) const = default;
};

// says_nothing: all sums are zero or beyond the range of floats.
enum class Comparison { agrees, says_nothing };

// A few elements of C, among them those of the first and the last rows and columns, where tails are.
class ProductCheck {
public:
    // Keeps C's previous content at these elements.
    ProductCheck(const ProductKind& kind, const void* c);

    // Compares C's new content with sums in double. Throws Error, with the library's name and the remedy, if an element
    // differs by more than rounding explains. bias: null if there is none.
    Comparison compare(const void* a, const void* b, const void* c, const void* bias) const;

private:
    static constexpr int kRows = 3;
    static constexpr int kColumns = 5;

    const ProductKind& kind_;
    std::array<int64_t, kRows> rows_;
    std::array<int64_t, kColumns> columns_;
    std::array<double, kRows * kColumns> before_;
};

}  // namespace teon::cpu
