// The orders of a batch's rows (Batch::token_order, position_order), in which the gradient of an embedding is summed: a
// stable sort of row numbers by a small key, as a radix sort, least significant digit first.
#pragma once

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>
#include <vector>

#include "base/integer.h"

namespace teon {

class RowSorter {
public:
    // rows (n) = 0 .. n - 1 ordered by key[row], ties by row. keys in [0, bound).
    void sort(int* rows, const int* keys, int n, int bound) {
        const int bits = std::max<int>(1, std::bit_width(static_cast<unsigned>(bound - 1)));
        const int passes = ceil_div(bits, kMaxDigitBits);
        const int digit_bits = ceil_div(bits, passes);
        const unsigned mask = (1u << digit_bits) - 1;
        scratch_.resize(n);
        // Passes read one of rows and scratch_ and write the other; the last pass writes rows.
        int* from = passes % 2 == 1 ? scratch_.data() : rows;
        int* to = passes % 2 == 1 ? rows : scratch_.data();
        for (int pass = 0; pass < passes; ++pass) {
            auto digit = [=](int row) { return static_cast<unsigned>(keys[row]) >> (pass * digit_bits) & mask; };
            next_.assign(mask + 1, 0);
            for (int i = 0; i < n; ++i) ++next_[digit(i)];
            std::exclusive_scan(next_.begin(), next_.end(), next_.begin(), 0);
            if (pass == 0) {
                for (int i = 0; i < n; ++i) to[next_[digit(i)]++] = i;
            } else {
                for (int i = 0; i < n; ++i) to[next_[digit(from[i])]++] = from[i];
            }
            std::swap(from, to);
        }
    }

private:
    static constexpr int kMaxDigitBits = 11;  // 2048 counters: they stay in the first-level cache
    std::vector<int> scratch_, next_;
};

}  // namespace teon
