// GELU (tanh form and exact form), squared ReLU and SwiGLU, serial. R is double or Tracked.
#pragma once

#include <cmath>
#include <vector>

#include "test/oracle/tracked.h"

namespace teon::test {

template <typename R>
std::vector<R> gelu_forward(const std::vector<R>& x) {
    using std::tanh;
    std::vector<R> out;
    for (R v : x) {
        const R u = R(std::sqrt(2.0 / M_PI)) * (v + R(0.044715) * v * v * v);
        out.push_back(R(0.5) * v * (R(1.0) + tanh(u)));
    }
    return out;
}

template <typename R>
std::vector<R> gelu_backward(const std::vector<R>& x, const std::vector<R>& dout) {
    using std::exp;
    using std::tanh;
    std::vector<R> dx;
    for (size_t i = 0; i < x.size(); ++i) {
        const R v = x[i], k = std::sqrt(2.0 / M_PI);
        const R u = k * (v + R(0.044715) * v * v * v), du = k * (R(1.0) + R(3.0 * 0.044715) * v * v);
        const R sech = R(2.0) / (exp(u) + exp(-u));
        dx.push_back(dout[i] * (R(0.5) * (R(1.0) + tanh(u)) + R(0.5) * v * sech * sech * du));
    }
    return dx;
}

// The exact form: x times the normal distribution at x.
template <typename R>
std::vector<R> gelu_erf_forward(const std::vector<R>& x) {
    using std::erfc;
    std::vector<R> out;
    for (R v : x) out.push_back(R(0.5) * v * erfc(-v / R(std::sqrt(2.0))));
    return out;
}

template <typename R>
std::vector<R> gelu_erf_backward(const std::vector<R>& x, const std::vector<R>& dout) {
    using std::erfc;
    using std::exp;
    std::vector<R> dx;
    for (size_t i = 0; i < x.size(); ++i) {
        const R v = x[i], density = R(1.0 / std::sqrt(2.0 * M_PI)) * exp(R(-0.5) * v * v);
        dx.push_back(dout[i] * (R(0.5) * erfc(-v / R(std::sqrt(2.0))) + v * density));
    }
    return dx;
}

template <typename R>
std::vector<R> relu2_forward(const std::vector<R>& x) {
    std::vector<R> out;
    for (R v : x) out.push_back(v > R(0.0) ? v * v : R(0.0));
    return out;
}

template <typename R>
std::vector<R> relu2_backward(const std::vector<R>& x, const std::vector<R>& dout) {
    std::vector<R> dx;
    for (size_t i = 0; i < x.size(); ++i) dx.push_back(x[i] > R(0.0) ? R(2.0) * x[i] * dout[i] : R(0.0));
    return dx;
}

// gate_up (N, 2F), gate first.
template <typename R>
std::vector<R> swiglu_forward(const std::vector<R>& gate_up, int N, int F) {
    using std::exp;
    std::vector<R> out;
    for (int row = 0; row < N; ++row)
        for (int j = 0; j < F; ++j) {
            const R g = gate_up[size_t(row) * 2 * F + j], u = gate_up[size_t(row) * 2 * F + F + j];
            out.push_back(g * u / (R(1.0) + exp(-g)));
        }
    return out;
}

template <typename R>
std::vector<R> swiglu_backward(const std::vector<R>& gate_up, const std::vector<R>& dout, int N, int F) {
    using std::exp;
    std::vector<R> dgate_up(gate_up.size());
    for (int row = 0; row < N; ++row)
        for (int j = 0; j < F; ++j) {
            const size_t gate = size_t(row) * 2 * F + j, up = gate + F;
            const R g = gate_up[gate], u = gate_up[up], d = dout[size_t(row) * F + j];
            const R s = R(1.0) / (R(1.0) + exp(-g)), ds = s / (R(1.0) + exp(g));
            dgate_up[gate] = d * u * (s + g * ds);
            dgate_up[up] = d * g * s;
        }
    return dgate_up;
}

}  // namespace teon::test
