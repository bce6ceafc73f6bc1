// The activation functions of the MLP, serial. R is double or Tracked.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/activation_kinds.h"
#include "test/oracle/columns.h"
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
        const R v = x[i];
        const R k = std::sqrt(2.0 / M_PI);
        const R u = k * (v + R(0.044715) * v * v * v);
        const R du = k * (R(1.0) + R(3.0 * 0.044715) * v * v);
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
        const R v = x[i];
        const R density = R(1.0 / std::sqrt(2.0 * M_PI)) * exp(R(-0.5) * v * v);
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

template <typename R>
std::vector<R> silu_forward(const std::vector<R>& x) {
    using std::exp;
    std::vector<R> out;
    for (R v : x) out.push_back(v / (R(1.0) + exp(-v)));
    return out;
}

template <typename R>
std::vector<R> silu_backward(const std::vector<R>& x, const std::vector<R>& dout) {
    using std::exp;
    std::vector<R> dx;
    for (size_t i = 0; i < x.size(); ++i) {
        const R s = R(1.0) / (R(1.0) + exp(-x[i]));
        dx.push_back(dout[i] * (s + x[i] * s / (R(1.0) + exp(x[i]))));
    }
    return dx;
}

// The function f of a kind: out = f(x), or f(gate) * up.
template <typename R>
struct ActivationOracle {
    std::vector<R> (*forward)(const std::vector<R>& x);
    std::vector<R> (*backward)(const std::vector<R>& x, const std::vector<R>& dout);
};
template <typename R>
ActivationOracle<R> activation_oracle(ActivationKind kind) {
    switch (kind) {
        case ActivationKind::gelu:
        case ActivationKind::geglu:
            return {gelu_forward<R>, gelu_backward<R>};
        case ActivationKind::gelu_erf:
        case ActivationKind::geglu_erf:
            return {gelu_erf_forward<R>, gelu_erf_backward<R>};
        case ActivationKind::relu2:
            return {relu2_forward<R>, relu2_backward<R>};
        case ActivationKind::swiglu:
            return {silu_forward<R>, silu_backward<R>};
        case ActivationKind::count:
            break;
    }
    return {};
}

// x: (N, F), or with a gate (N, 2F), gate first.
template <typename R>
std::vector<R> activation_forward(const ActivationFunction& row, const std::vector<R>& x, int F) {
    const ActivationOracle<R> f = activation_oracle<R>(row.kind);
    if (!row.gated) return f.forward(x);
    std::vector<R> out = f.forward(columns(x, 2 * F, 0, F));
    const std::vector<R> up = columns(x, 2 * F, F, 2 * F);
    for (size_t i = 0; i < out.size(); ++i) out[i] = out[i] * up[i];
    return out;
}

template <typename R>
std::vector<R> activation_backward(const ActivationFunction& row, const std::vector<R>& x, const std::vector<R>& dout,
                                   int F) {
    const ActivationOracle<R> f = activation_oracle<R>(row.kind);
    if (!row.gated) return f.backward(x, dout);
    const std::vector<R> gate = columns(x, 2 * F, 0, F);
    const std::vector<R> up = columns(x, 2 * F, F, 2 * F);
    const std::vector<R> activated = f.forward(gate);
    std::vector<R> of_gate;  // what f.backward takes
    for (size_t i = 0; i < dout.size(); ++i) of_gate.push_back(dout[i] * up[i]);
    const std::vector<R> dgate = f.backward(gate, of_gate);
    std::vector<R> dx;
    for (size_t begin = 0; begin < dout.size(); begin += size_t(F)) {
        for (size_t i = begin; i < begin + size_t(F); ++i) dx.push_back(dgate[i]);
        for (size_t i = begin; i < begin + size_t(F); ++i) dx.push_back(dout[i] * activated[i]);
    }
    return dx;
}

}  // namespace teon::test
