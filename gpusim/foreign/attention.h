// Attention in float64, and the parameters with which FlashAttention is called.
#pragma once

#include "flash.h"
#include "host.h"

namespace foreign {

using cutlass::bfloat16_t;

// Layout (token, head, column), one sequence.
struct Attention {
    int tokens, heads, kv_heads, size;
    bool causal;

    size_t at(int token, int head, int column, bool kv = false) const {
        return (size_t(token) * (kv ? kv_heads : heads) + head) * size + column;
    }
    size_t q_count() const { return size_t(tokens) * heads * size; }
    size_t kv_count() const { return size_t(tokens) * kv_heads * size; }
    double scale() const { return 1 / std::sqrt(double(size)); }
};

struct AttentionResult {
    std::vector<double> o, lse, dq, dk, dv;  // lse: (head, token)
};

// `d_o`: the gradient of o; empty for the forward pass alone.
inline AttentionResult attention(const Attention& a, const std::vector<double>& q, const std::vector<double>& k,
                                 const std::vector<double>& v, const std::vector<double>& d_o = {}) {
    AttentionResult r;
    r.o.assign(a.q_count(), 0);
    r.lse.assign(size_t(a.heads) * a.tokens, 0);
    if (!d_o.empty()) {
        r.dq.assign(a.q_count(), 0);
        r.dk.assign(a.kv_count(), 0);
        r.dv.assign(a.kv_count(), 0);
    }
    std::vector<double> p(a.tokens);
    for (int h = 0; h < a.heads; ++h) {
        const int kv = h / (a.heads / a.kv_heads);
        for (int i = 0; i < a.tokens; ++i) {
            const int end = a.causal ? i + 1 : a.tokens;
            double maximum = -INFINITY;
            for (int j = 0; j < end; ++j) {
                p[j] = 0;
                for (int c = 0; c < a.size; ++c) p[j] += q[a.at(i, h, c)] * k[a.at(j, kv, c, true)];
                p[j] *= a.scale();
                maximum = std::max(maximum, p[j]);
            }
            double sum = 0;
            for (int j = 0; j < end; ++j) sum += std::exp(p[j] - maximum);
            const double lse = maximum + std::log(sum);
            r.lse[size_t(h) * a.tokens + i] = lse;
            for (int j = 0; j < end; ++j) {
                p[j] = std::exp(p[j] - lse);
                for (int c = 0; c < a.size; ++c) r.o[a.at(i, h, c)] += p[j] * v[a.at(j, kv, c, true)];
            }
            if (d_o.empty()) continue;
            double mean = 0;
            for (int c = 0; c < a.size; ++c) mean += d_o[a.at(i, h, c)] * r.o[a.at(i, h, c)];
            for (int j = 0; j < end; ++j) {
                double dp = 0;
                for (int c = 0; c < a.size; ++c) {
                    dp += d_o[a.at(i, h, c)] * v[a.at(j, kv, c, true)];
                    r.dv[a.at(j, kv, c, true)] += p[j] * d_o[a.at(i, h, c)];
                }
                const double ds = p[j] * (dp - mean) * a.scale();
                for (int c = 0; c < a.size; ++c) {
                    r.dq[a.at(i, h, c)] += ds * k[a.at(j, kv, c, true)];
                    r.dk[a.at(j, kv, c, true)] += ds * q[a.at(i, h, c)];
                }
            }
        }
    }
    return r;
}

// The parameters that do not depend on memory.
template <typename Params>
Params parameters_of(const Attention& a, int arch, int multiprocessors) {
    Params p = {};
    p.b = 1;
    p.b_k = 1;
    p.h = a.heads;
    p.h_k = a.kv_heads;
    p.seqlen_q = p.seqlen_k = a.tokens;
    p.seqlen_q_rounded = p.seqlen_k_rounded = (a.tokens + 127) / 128 * 128;
    p.d = p.dv = p.d_rounded = p.dv_rounded = a.size;
    p.q_row_stride = p.o_row_stride = int64_t{a.heads} * a.size;
    p.k_row_stride = p.v_row_stride = int64_t{a.kv_heads} * a.size;
    p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = a.size;
    p.q_batch_stride = p.o_batch_stride = int64_t(a.q_count());
    p.k_batch_stride = p.v_batch_stride = int64_t(a.kv_count());
    p.v_dim_stride = 1;
    p.scale_softmax = float(a.scale());
    p.window_size_left = -1;
    p.window_size_right = a.causal ? 0 : -1;
    p.is_causal = a.causal;
    p.is_bf16 = true;
    p.num_splits = 1;
    p.arch = arch;
    p.num_sm = multiprocessors;
    return p;
}

}  // namespace foreign
