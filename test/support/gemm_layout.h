// Matrices in memory with padding, and the tolerance of sums of products.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/linalg/linalg.h"

namespace teon::test {

// The layout of a matrix, or of a batch of inner * outer matrices: rows are ld elements apart and matrices a stride;
// everything in between is padding.
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
    // Returns matrix b of the batch without padding.
    template <typename T>
    std::vector<T> take(const std::vector<T>& memory, int b) const {
        std::vector<T> packed;
        for (int i = 0; i < rows; ++i) {
            auto row = memory.begin() + matrix(b) + i * ld;
            packed.insert(packed.end(), row, row + columns);
        }
        return packed;
    }
    // Returns the memory with all matrices set to 0, for comparing the padding.
    template <typename T>
    std::vector<T> blank(std::vector<T> memory) const {
        for (int b = 0; b < inner * outer; ++b)
            for (int i = 0; i < rows; ++i) std::fill_n(memory.begin() + matrix(b) + i * ld, columns, T(0.0f));
        return memory;
    }
};

// In a float sum of K products with random signs, the rounding errors are a random walk along the partial sums, which
// are a random walk as well. The error therefore grows like sum |a b| roundoffs for every K; the worst case is K times
// that. The largest error measured in some million sums was 2.5 in units of the magnitude, which is 2 sum |a b|.
inline constexpr double kSumRoundings = 4.0;

}  // namespace teon::test
