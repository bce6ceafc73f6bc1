// Layernorm and rmsnorm, serial. R is double or Tracked.
#pragma once

#include <cmath>
#include <vector>

#include "test/oracle/tracked.h"

namespace teon::test {

template <typename R>
struct Norm {
    std::vector<R> out, mean, rstd;
};

template <typename R>
struct NormGradients {
    std::vector<R> dx, dweight, dbias;
};

// Layernorm if centered, else rmsnorm, which ignores bias and has mean 0.
template <typename R>
Norm<R> norm_forward(const std::vector<R>& x, const std::vector<R>& weight, const std::vector<R>& bias, int N, int C,
                     double eps, bool centered) {
    using std::sqrt;
    Norm<R> result;
    for (int row = 0; row < N; ++row) {
        const R* v = &x[static_cast<size_t>(row) * C];
        R mean = 0.0;
        R variance = 0.0;
        for (int j = 0; j < C && centered; ++j) mean += v[j] / R(C);
        for (int j = 0; j < C; ++j) variance += (v[j] - mean) * (v[j] - mean) / R(C);
        const R rstd = R(1.0) / sqrt(variance + R(eps));
        for (int j = 0; j < C; ++j) {
            const R y = (v[j] - mean) * rstd * weight[j];
            result.out.push_back(centered ? y + bias[j] : y);
        }
        result.mean.push_back(mean);
        result.rstd.push_back(rstd);
    }
    return result;
}

// dx does not include the residual's gradient. Uses the chain rule through rstd and mean instead of the kernels' closed
// form.
template <typename R>
NormGradients<R> norm_backward(const std::vector<R>& dout, const std::vector<R>& x, const std::vector<R>& weight, int N,
                               int C, double eps, bool centered) {
    const Norm<R> forward = norm_forward(x, weight, std::vector<R>(C, R(0.0)), N, C, eps, centered);
    NormGradients<R> result;
    result.dweight.assign(C, R(0.0));
    result.dbias.assign(C, R(0.0));
    for (int row = 0; row < N; ++row) {
        const R* v = &x[static_cast<size_t>(row) * C];
        const R* d = &dout[static_cast<size_t>(row) * C];
        const R mean = forward.mean[row];
        const R rstd = forward.rstd[row];
        R drstd = 0.0;
        R dmean = 0.0;
        for (int j = 0; j < C; ++j) {
            result.dweight[j] += d[j] * (v[j] - mean) * rstd;
            result.dbias[j] += d[j];
            drstd += d[j] * weight[j] * (v[j] - mean);
            dmean -= d[j] * weight[j] * rstd;
        }
        // rstd = (variance + eps)^(-1/2); the variance does not depend on the mean to first order.
        const R dvariance = R(-0.5) * drstd * rstd * rstd * rstd;
        for (int j = 0; j < C; ++j) {
            R dx = d[j] * weight[j] * rstd + R(2.0) * dvariance * (v[j] - mean) / R(C);
            if (centered) dx += dmean / R(C);
            result.dx.push_back(dx);
        }
    }
    return result;
}

}  // namespace teon::test
