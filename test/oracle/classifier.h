// Softmax cross-entropy, row by row. R is double or Tracked.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "test/oracle/tracked.h"

namespace teon::test {

template <typename R>
struct ClassifierOracle {
    std::vector<R> losses;   // (N)
    std::vector<R> dlogits;  // (N, Vp)
};

template <typename R>
ClassifierOracle<R> classifier_oracle(const std::vector<R>& logits, const std::vector<int>& targets, int N, int V,
                                      int Vp, double grad_scale) {
    using std::exp;
    using std::log;
    ClassifierOracle<R> o{std::vector<R>(static_cast<size_t>(N)), std::vector<R>(logits.size())};
    for (int n = 0; n < N; ++n) {
        if (targets[n] < 0) continue;
        const R* x = logits.data() + int64_t{n} * Vp;
        double maximum = -INFINITY;
        for (int j = 0; j < V; ++j) maximum = std::max(maximum, value_of(x[j]));
        R sum{};
        for (int j = 0; j < V; ++j) sum += exp(x[j] - R(maximum));
        o.losses[n] = log(sum) + R(maximum) - x[targets[n]];
        for (int j = 0; j < V; ++j) {
            const R p = exp(x[j] - R(maximum)) / sum;
            o.dlogits[int64_t{n} * Vp + j] = R(grad_scale) * (p - R(j == targets[n] ? 1.0 : 0.0));
        }
    }
    return o;
}

}  // namespace teon::test
