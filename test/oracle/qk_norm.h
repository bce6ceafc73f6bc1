// RMSNorm of the heads of packed queries and keys, serial: rmsnorm of each head. R is double or Tracked.
#pragma once

#include "test/oracle/norm.h"

namespace teon::test {

template <typename R>
struct QkNorm {
    std::vector<R> out, rstd;
};
template <typename R>
struct QkNormGradients {
    std::vector<R> dx, dq_weight, dk_weight;
};

// x (N, (NH + 2 NKV) * HS).
template <typename R>
QkNorm<R> qk_norm_forward(const std::vector<R>& x, const std::vector<R>& q_weight, const std::vector<R>& k_weight,
                          int N, int NH, int NKV, int HS, double eps) {
    QkNorm<R> result;
    for (int row = 0; row < N; row++)
        for (int head = 0; head < NH + 2 * NKV; head++) {
            const auto begin = x.begin() + (int64_t{row} * (NH + 2 * NKV) + head) * HS;
            std::vector<R> values(begin, begin + HS);
            if (head < NH + NKV) {
                const Norm<R> norm = norm_forward(values, head < NH ? q_weight : k_weight, {}, 1, HS, eps, false);
                values = norm.out;
                result.rstd.push_back(norm.rstd[0]);
            }
            result.out.insert(result.out.end(), values.begin(), values.end());
        }
    return result;
}

template <typename R>
QkNormGradients<R> qk_norm_backward(const std::vector<R>& dout, const std::vector<R>& x, const std::vector<R>& q_weight,
                                    const std::vector<R>& k_weight, int N, int NH, int NKV, int HS, double eps) {
    QkNormGradients<R> result;
    result.dq_weight.assign(HS, R(0.0));
    result.dk_weight.assign(HS, R(0.0));
    for (int row = 0; row < N; row++)
        for (int head = 0; head < NH + 2 * NKV; head++) {
            const int64_t at = (int64_t{row} * (NH + 2 * NKV) + head) * HS;
            std::vector<R> d(dout.begin() + at, dout.begin() + at + HS), v(x.begin() + at, x.begin() + at + HS);
            if (head < NH + NKV) {
                const bool query = head < NH;
                const NormGradients<R> g = norm_backward(d, v, query ? q_weight : k_weight, 1, HS, eps, false);
                std::vector<R>& dweight = query ? result.dq_weight : result.dk_weight;
                for (int j = 0; j < HS; j++) dweight[j] += g.dweight[j];
                d = g.dx;
            }
            result.dx.insert(result.dx.end(), d.begin(), d.end());
        }
    return result;
}

}  // namespace teon::test
