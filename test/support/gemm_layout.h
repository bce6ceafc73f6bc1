// Matrices in memory that has more than them, and how far sums of products may be from the oracle's.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/linalg.h"

namespace teon::test {

// A matrix (or a batch of them) in memory: rows of ld elements, matrices at strides, everything between them padding.
struct Layout {
    int rows, columns, inner = 1, outer = 1;
    int64_t ld, stride_inner, stride_outer;
    Layout(int rows, int columns, int padding, int inner, int outer)
        : rows(rows), columns(columns), inner(inner), outer(outer), ld(columns + padding) {
        stride_inner = rows * ld + padding;
        stride_outer = inner * stride_inner + 2 * padding;
    }
    int64_t size() const { return outer * stride_outer; }
    int64_t matrix(int b) const { return b / inner * stride_outer + b % inner * stride_inner; }
    template <typename T>
    Mat mat(const T* data) const {
        return teon::mat(data, ld, stride_inner, stride_outer);
    }
    // Matrix b of the batch, packed.
    template <typename T>
    std::vector<T> take(const std::vector<T>& memory, int b) const {
        std::vector<T> packed;
        for (int i = 0; i < rows; i++) {
            auto row = memory.begin() + matrix(b) + i * ld;
            packed.insert(packed.end(), row, row + columns);
        }
        return packed;
    }
    // The memory with all matrices set to a value: two memories agree outside the matrices if they agree after this.
    template <typename T>
    std::vector<T> blank(std::vector<T> memory) const {
        for (int b = 0; b < inner * outer; b++)
            for (int i = 0; i < rows; i++) std::fill_n(memory.begin() + matrix(b) + i * ld, columns, T(0.0f));
        return memory;
    }
};

// The rounding errors of a float sum of K products with random signs behave like a random walk along partial sums that
// are themselves one: they grow like sum |a b| roundoffs whatever K is, where the worst case is K times that. The
// largest of some million sums measured 2.5 in units of magnitude, which is 2 sum |a b|.
inline constexpr double kSumRoundings = 4.0;

}  // namespace teon::test
