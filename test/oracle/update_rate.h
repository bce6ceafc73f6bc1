// How learning rate and weight decay reach a weight, serial: Algorithm 2 of Loshchilov & Hutter, arXiv 1711.05101, with
// decay scaled by the learning rate; cautious: Algorithm 1 of Chen et al., arXiv 2510.12402. R is double or Tracked.
#pragma once

#include "test/oracle/tracked.h"

namespace teon::test {

struct OracleRate {
    double lr, lr_scale = 1, weight_decay = 0;
    bool cautious = false;
    double lr_factor = 1;  // of the schedule
};

template <typename R>
R updated(R weight, R direction, const OracleRate& rate) {
    const double lr = rate.lr * rate.lr_factor;
    const bool decays = !rate.cautious || !(direction * weight < R(0.0));
    return weight - R(lr * rate.lr_scale) * direction - R(decays ? lr * rate.weight_decay : 0.0) * weight;
}

}  // namespace teon::test
