// Lion, serial: Algorithm 2 of Chen et al., arXiv 2302.06675. R is double or Tracked.
#pragma once

#include <vector>

#include "test/oracle/update_rate.h"

namespace teon::test {

template <typename R>
struct LionState {
    std::vector<R> weight, m;
};

template <typename R>
void lion_update(LionState<R>& state, const std::vector<R>& grad, double scale, const OracleRate& rate, double beta1,
                 double beta2) {
    for (size_t i = 0; i < grad.size(); ++i) {
        R& m = state.m[i];
        const R g = grad[i] * R(scale);
        const R c = R(beta1) * m + R(1.0 - beta1) * g;
        m = R(beta2) * m + R(1.0 - beta2) * g;
        const double sign = (c > R(0.0)) - (c < R(0.0));
        state.weight[i] = updated(state.weight[i], R(sign), rate);
    }
}

}  // namespace teon::test
