// Causal self-attention over packed heads, one query row at a time. R is double or Tracked.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/attention/attention.h"
#include "test/oracle/tracked.h"

namespace teon::test {

template <typename R>
struct AttentionOracle {
    std::vector<R> out;   // (B, T, NH, HS)
    std::vector<R> lse;   // (B, NH, T)
    std::vector<R> dqkv;  // (B, T, NH + 2 NKV, HS); empty without dout
};

// qkv (B, T, NH + 2 NKV, HS), dout (B, T, NH, HS) or empty, first_key (B, T) or empty. factor(b, h, t, key): what
// dropout multiplies a probability with; empty: 1.
template <typename R>
AttentionOracle<R> attention_oracle(const std::vector<R>& qkv, const std::vector<R>& dout,
                                    const std::vector<int>& first_key, const AttentionShape& s,
                                    const std::function<double(int, int, int, int)>& factor = nullptr) {
    using std::exp;
    using std::log;
    const int heads = s.NH + 2 * s.NKV;
    const int group = s.NH / s.NKV;
    auto packed = [&](int b, int t, int head) { return ((int64_t{b} * s.T + t) * heads + head) * s.HS; };
    auto plain = [&](int b, int t, int head) { return ((int64_t{b} * s.T + t) * s.NH + head) * s.HS; };
    const R scale(1.0 / std::sqrt(static_cast<double>(s.HS)));

    AttentionOracle<R> o;
    o.out.resize(static_cast<size_t>(int64_t{s.B} * s.T * s.NH * s.HS));
    o.lse.resize(static_cast<size_t>(int64_t{s.B} * s.NH * s.T));
    if (!dout.empty()) o.dqkv.resize(qkv.size());
    std::vector<R> p(static_cast<size_t>(s.T));
    std::vector<R> dp(static_cast<size_t>(s.T));

    for (int b = 0; b < s.B; ++b)
        for (int h = 0; h < s.NH; ++h)
            for (int t = 0; t < s.T; ++t) {
                const int first = first_key.empty() ? 0 : first_key[static_cast<size_t>(b * s.T + t)];
                const int64_t q = packed(b, t, h);
                const int64_t y = plain(b, t, h);
                auto key = [&](int u) { return packed(b, u, s.NH + h / group); };
                auto value = [&](int u) { return packed(b, u, s.NH + s.NKV + h / group); };
                auto drop = [&](const R& x, int u) { return factor ? x * R(factor(b, h, t, u)) : x; };

                double maximum = -INFINITY;
                for (int u = first; u <= t; ++u) {
                    R dot{};
                    for (int c = 0; c < s.HS; ++c) dot += qkv[q + c] * qkv[key(u) + c];
                    p[u] = dot * scale;
                    maximum = std::max(maximum, value_of(p[u]));
                }
                R sum{};
                for (int u = first; u <= t; ++u) sum += exp(p[u] - R(maximum));
                const R lse = log(sum) + R(maximum);
                o.lse[(int64_t{b} * s.NH + h) * s.T + t] = lse;
                for (int u = first; u <= t; ++u) {
                    p[u] = exp(p[u] - lse);
                    for (int c = 0; c < s.HS; ++c) o.out[y + c] += drop(p[u], u) * qkv[value(u) + c];
                }
                if (dout.empty()) continue;

                R reduced{};  // the sum of dP * P: the softmax projects this part of dP away
                for (int u = first; u <= t; ++u) {
                    dp[u] = R{};
                    for (int c = 0; c < s.HS; ++c) dp[u] += dout[y + c] * qkv[value(u) + c];
                    dp[u] = drop(dp[u], u);
                    reduced += dp[u] * p[u];
                }
                for (int u = first; u <= t; ++u) {
                    const R ds = p[u] * (dp[u] - reduced) * scale;
                    for (int c = 0; c < s.HS; ++c) {
                        o.dqkv[q + c] += ds * qkv[key(u) + c];
                        o.dqkv[key(u) + c] += ds * qkv[q + c];
                        o.dqkv[value(u) + c] += drop(p[u], u) * dout[y + c];
                    }
                }
            }
    return o;
}

}  // namespace teon::test
