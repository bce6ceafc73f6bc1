// RMSNorm of each vector of packed queries and keys, serial. R is double or Tracked.
#pragma once

#include "kernels/qk_norm.h"
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

// Calls f(vector, begin, end) for each vector of each row of a packed tensor. The vector has elements [begin, end).
template <typename F>
void for_each_vector(int N, const QkVectors& v, F f) {
    int64_t begin = 0;
    for (int row = 0; row < N; ++row)
        for (int i = 0; i < v.all(); ++i) {
            const int64_t end = begin + (i < v.queries ? v.q_width : v.k_width);
            f(i, begin, end);
            begin = end;
        }
}

// x (N, row_width).
template <typename R>
QkNorm<R> qk_norm_forward(const std::vector<R>& x, const std::vector<R>& q_weight, const std::vector<R>& k_weight,
                          int N, const QkVectors& v, double eps) {
    QkNorm<R> result;
    for_each_vector(N, v, [&](int i, int64_t begin, int64_t end) {
        std::vector<R> values(x.begin() + begin, x.begin() + end);
        if (i < v.normed()) {
            const std::vector<R>& weight = i < v.queries ? q_weight : k_weight;
            const Norm<R> norm = norm_forward(values, weight, {}, 1, static_cast<int>(end - begin), eps, false);
            values = norm.out;
            result.rstd.push_back(norm.rstd[0]);
        }
        result.out.insert(result.out.end(), values.begin(), values.end());
    });
    return result;
}

template <typename R>
QkNormGradients<R> qk_norm_backward(const std::vector<R>& dout, const std::vector<R>& x, const std::vector<R>& q_weight,
                                    const std::vector<R>& k_weight, int N, const QkVectors& v, double eps) {
    QkNormGradients<R> result;
    result.dq_weight.assign(v.q_width, R(0.0));
    result.dk_weight.assign(v.k_width, R(0.0));
    for_each_vector(N, v, [&](int i, int64_t begin, int64_t end) {
        std::vector<R> d(dout.begin() + begin, dout.begin() + end);
        std::vector<R> values(x.begin() + begin, x.begin() + end);
        if (i < v.normed()) {
            const bool query = i < v.queries;
            const NormGradients<R> g =
                norm_backward(d, values, query ? q_weight : k_weight, 1, static_cast<int>(end - begin), eps, false);
            std::vector<R>& dweight = query ? result.dq_weight : result.dk_weight;
            for (size_t j = 0; j < dweight.size(); ++j) dweight[j] += g.dweight[j];
            d = g.dx;
        }
        result.dx.insert(result.dx.end(), d.begin(), d.end());
    });
    return result;
}

}  // namespace teon::test
