// A keyed permutation of [0, n) that is evaluated at one index at a time, without a table: seeking any sample is O(1).
//
// This is a generalized Feistel network with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains",
// CT-RSA 2002). i is written as (l, r) = (i / b, i mod b) on a grid of a * b >= n cells with a, b about sqrt(n). Rounds
// alternately shift l by a hash of r (mod a) and r by a hash of l (mod b). Each round is invertible, so their
// composition is a bijection of the grid. A result outside [0, n) is permuted again until it is inside; this remains a
// bijection of [0, n), and it is rare, because fewer than a cells are outside.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "base/integer.h"

namespace teon {

class Permutation {
public:
    // n in [1, 2^62). Every (seed, epoch) gives a permutation of its own.
    Permutation(int64_t n, uint64_t seed, uint64_t epoch) : n_(n) {
        CHECK(n >= 1 && n < int64_t{1} << 62, "permutation of {} elements: expected 1 to 2^62 - 1", n);
        a_ = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(n))));
        b_ = ceil_div(n, a_);
        uint64_t state = mix64(mix64(seed) ^ epoch);
        for (uint64_t& key : keys_) key = splitmix64(state);
    }

    // i in [0, n).
    int64_t operator()(int64_t i) const {
        do i = permute_grid(i);
        while (i >= n_);
        return i;
    }

private:
    // Small n need the most rounds: with 12 the frequencies of the 720 orders of 6 elements are visibly unequal, with
    // 16 they are not. The rounds cost tens of nanoseconds per window.
    static constexpr int kRounds = 20;

    // Shifts `value` in [0, size) by an amount that depends on `other` and the round's key. size < 2^32.
    static int64_t shift(int64_t value, int64_t other, uint64_t key, int64_t size) {
        uint64_t by = (mix64(static_cast<uint64_t>(other) + key) >> 32) * static_cast<uint64_t>(size) >> 32;
        value += static_cast<int64_t>(by);
        return value < size ? value : value - size;
    }

    int64_t permute_grid(int64_t i) const {
        int64_t l = i / b_;
        int64_t r = i % b_;
        for (int k = 0; k < kRounds; k += 2) {
            l = shift(l, r, keys_[k], a_);
            r = shift(r, l, keys_[k + 1], b_);
        }
        return l * b_ + r;
    }

    int64_t n_, a_, b_;
    uint64_t keys_[kRounds];
};

}  // namespace teon
