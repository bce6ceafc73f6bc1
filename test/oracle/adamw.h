// AdamW, serial: Algorithm 2 of Loshchilov & Hutter, arXiv 1711.05101. R is double or Tracked.
#pragma once

#include <cmath>
#include <vector>

#include "test/oracle/update_rate.h"

namespace teon::test {

template <typename R>
struct AdamwState {
    std::vector<R> weight, m, v;
};

template <typename R>
void adamw_update(AdamwState<R>& state, const std::vector<R>& grad, double scale, int t, const OracleRate& rate,
                  double beta1, double beta2, double eps) {
    using std::sqrt;
    for (size_t i = 0; i < grad.size(); ++i) {
        R& m = state.m[i];
        R& v = state.v[i];
        const R g = grad[i] * R(scale);
        m = R(beta1) * m + R(1.0 - beta1) * g;
        v = R(beta2) * v + R(1.0 - beta2) * g * g;
        const R m_hat = m / R(1.0 - std::pow(beta1, t));
        const R v_hat = v / R(1.0 - std::pow(beta2, t));
        state.weight[i] = updated(state.weight[i], m_hat / (sqrt(v_hat) + R(eps)), rate);
    }
}

}  // namespace teon::test
