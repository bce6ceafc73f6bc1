// Lion, serial: Algorithm 2 of Chen et al., arXiv 2302.06675, with decay scaled by the learning rate. R is double or
// Tracked.
#pragma once

#include <vector>

#include "test/oracle/tracked.h"

namespace teon::test {

template <typename R>
struct LionState {
    std::vector<R> weight, m;
};

// cautious: the decay applies only if update * weight >= 0 (Algorithm 1 of arXiv 2510.12402).
template <typename R>
void lion_update(LionState<R>& state, const std::vector<R>& grad, double scale, double lr, double beta1, double beta2,
                 double weight_decay, bool cautious) {
    for (size_t i = 0; i < grad.size(); ++i) {
        R &w = state.weight[i], &m = state.m[i];
        const R g = grad[i] * R(scale), c = R(beta1) * m + R(1.0 - beta1) * g;
        m = R(beta2) * m + R(1.0 - beta2) * g;
        const double sign = c > R(0.0) ? 1 : c < R(0.0) ? -1 : 0;
        const double decay = cautious && R(sign) * w < R(0.0) ? 0 : weight_decay;
        w = w - R(lr * sign) - R(lr * decay) * w;
    }
}

}  // namespace teon::test
