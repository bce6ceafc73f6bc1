// Shared by the tests of both attention implementations: inputs, the naive computation that sets the tolerances, and
// the comparison with the float64 oracle.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>

#include "test/oracle/attention.h"
#include "test/oracle/columns.h"
#include "test/support/catch.h"
#include "test/support/compare.h"

namespace teon::test {

inline std::string describe(const AttentionShape& s) {
    return fmt::format("B={} T={} NH={} NKV={} HS={}", s.B, s.T, s.NH, s.NKV, s.HS);
}

template <typename T>
struct AttentionInputs {
    std::vector<T> qkv, dout;
    std::vector<int> first_key;                                  // empty: one document per sequence
    std::function<double(int, int, int, int)> factor = nullptr;  // attention_oracle's; empty: no dropout
};

// Random inputs with standard deviation 1, but `std` for queries and keys.
template <typename T>
AttentionInputs<T> random_inputs(const AttentionShape& s, uint64_t seed, double std = 1.0) {
    AttentionInputs<T> in{random_values<T>(s.B * s.T * s.qkv_width(), seed),
                          random_values<T>(int64_t{s.B} * s.T * s.NH * s.HS, seed + 1),
                          {},
                          nullptr};
    for (int64_t row = 0; row < int64_t{s.B} * s.T; ++row)
        for (int c = 0; c < (s.NH + s.NKV) * s.HS; ++c) {
            T& x = in.qkv[row * s.qkv_width() + c];
            x = T(static_cast<float>(x) * static_cast<float>(std));
        }
    return in;
}

// Documents of random lengths, many of a single token.
inline std::vector<int> random_documents(int B, int T, uint64_t seed) {
    std::vector<int> cut = random_ints(int64_t{B} * T, seed, 8);
    std::vector<int> start(cut.size());
    for (int b = 0; b < B; ++b)
        for (int t = 0; t < T; ++t) {
            const bool begins = t == 0 || cut[b * T + t] == 0 || (t > 1 && cut[b * T + t - 1] == 0);
            start[b * T + t] = begins ? t : start[b * T + t - 1];
        }
    return start;
}

template <typename T>
struct AttentionResult {
    std::vector<T> out;
    std::vector<float> lse;
    std::vector<T> dqkv;
};

template <typename T>
AttentionOracle<Tracked> oracle(const AttentionShape& s, const AttentionInputs<T>& in) {
    return attention_oracle(widen<Tracked>(in.qkv), widen<Tracked>(in.dout), in.first_key, s, in.factor);
}

// Rounding errors per term, in float: up to 4 in exp_fast, the others in the partial sums of a dot product.
inline constexpr double kRoundings = 8;

// Attention as a plain bf16 program computes it: every matrix is rounded to bf16, and each operation computes in float.
inline AttentionOracle<double> naive_bf16(const AttentionShape& s, const AttentionInputs<bf16>& in) {
    const int heads = s.NH + 2 * s.NKV;
    const int group = s.NH / s.NKV;
    auto rounded = [](float x) { return static_cast<float>(bf16(x)); };
    const float scale = rounded(1.0f / std::sqrt(static_cast<float>(s.HS)));
    AttentionOracle<double> o;
    o.out.resize(in.dout.size());
    std::vector<float> dqkv(in.qkv.size());
    std::vector<float> p(s.T);
    std::vector<float> dp(s.T);
    for (int b = 0; b < s.B; ++b)
        for (int h = 0; h < s.NH; ++h) {
            auto row = [&](int t, int head) { return ((int64_t{b} * s.T + t) * heads + head) * s.HS; };
            auto dot = [&](const std::vector<bf16>& x, int64_t i, int64_t j) {
                float sum = 0.0f;
                for (int c = 0; c < s.HS; ++c) sum += static_cast<float>(x[i + c]) * static_cast<float>(in.qkv[j + c]);
                return rounded(sum);
            };
            for (int t = 0; t < s.T; ++t) {
                const int first = in.first_key.empty() ? 0 : in.first_key[b * s.T + t];
                const int64_t y = ((int64_t{b} * s.T + t) * s.NH + h) * s.HS;
                const int64_t q = row(t, h);
                auto key = [&](int u) { return row(u, s.NH + h / group); };
                auto value = [&](int u) { return row(u, s.NH + s.NKV + h / group); };
                auto drop = [&](float x, int u) {
                    return in.factor ? rounded(x * static_cast<float>(in.factor(b, h, t, u))) : x;
                };
                float maximum = -INFINITY;
                float sum = 0.0f;
                float reduced = 0.0f;
                for (int u = first; u <= t; ++u) {
                    p[u] = rounded(scale * dot(in.qkv, q, key(u)));
                    maximum = std::max(maximum, p[u]);
                }
                for (int u = first; u <= t; ++u) sum += std::exp(p[u] - maximum);
                for (int u = first; u <= t; ++u) {
                    p[u] = rounded(std::exp(p[u] - maximum) / sum);
                    dp[u] = drop(dot(in.dout, y, value(u)), u);
                    reduced += dp[u] * p[u];
                }
                std::vector<float> out(s.HS);
                std::vector<float> dq(s.HS);
                for (int u = first; u <= t; ++u) {
                    const float ds = rounded(rounded(p[u] * (dp[u] - reduced)) * scale);
                    for (int c = 0; c < s.HS; ++c) {
                        out[c] += drop(p[u], u) * static_cast<float>(in.qkv[value(u) + c]);
                        dq[c] += ds * static_cast<float>(in.qkv[key(u) + c]);
                        dqkv[key(u) + c] += ds * static_cast<float>(in.qkv[q + c]);
                        dqkv[value(u) + c] += drop(p[u], u) * static_cast<float>(in.dout[y + c]);
                    }
                }
                for (int c = 0; c < s.HS; ++c) {
                    o.out[y + c] = rounded(out[c]);
                    dqkv[q + c] = dq[c];
                }
            }
        }
    for (float x : dqkv) o.dqkv.push_back(rounded(x));
    return o;
}

// One tolerance for a whole tensor: `times` the largest error of the naive computation, plus the error of float, plus
// one rounding of the largest value, because the naive result may be exact by luck, for example with a single key.
inline std::vector<double> naive_tolerance(const std::vector<Tracked>& expected, const std::vector<double>& naive,
                                           double times) {
    double error = 0;
    double value = 0;
    double magnitude = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        error = std::max(error, std::abs(naive[i] - expected[i].value));
        value = std::max(value, std::abs(expected[i].value));
        magnitude = std::max(magnitude, expected[i].magnitude);
    }
    const double tolerance =
        times * error + kUnitRoundoff<bf16> * value + kRoundings * kUnitRoundoff<float> * magnitude;
    return std::vector<double>(expected.size(), tolerance);
}

inline std::vector<double> values_of(const std::vector<Tracked>& tracked) {
    std::vector<double> values;
    for (const Tracked& x : tracked) values.push_back(x.value);
    return values;
}

// Requires that the error of `actual` is at most twice that of the naive computation, and three times in gradients.
inline void close_to_naive_bf16(const AttentionShape& s, const AttentionInputs<bf16>& in,
                                const AttentionResult<bf16>& actual) {
    INFO(describe(s));
    const AttentionOracle<Tracked> expected = oracle(s, in);
    const AttentionOracle<double> naive = naive_bf16(s, in);
    REQUIRE(compare(actual.lse, expected.lse, kRoundings));
    REQUIRE(compare(actual.out, values_of(expected.out), naive_tolerance(expected.out, naive.out, 2)));
    // dQ, dK and dV have different scales.
    const int64_t end[] = {s.NH * s.HS, (s.NH + s.NKV) * s.HS, s.qkv_width()};
    for (int part = 0; part < 3; ++part) {
        INFO("part " << part << " of dqkv");
        auto take = [&](const auto& x) { return columns(x, s.qkv_width(), part == 0 ? 0 : end[part - 1], end[part]); };
        const std::vector<Tracked> reference = take(expected.dqkv);
        REQUIRE(compare(take(actual.dqkv), values_of(reference), naive_tolerance(reference, take(naive.dqkv), 3)));
    }
}

// ---- Properties of every implementation. run(s, in) returns an AttentionResult<T>. --------------------------------

// Rows [begin, end) of the inputs, without documents and dropout.
template <typename T>
AttentionInputs<T> part_of(const AttentionShape& s, const AttentionInputs<T>& in, int64_t begin, int64_t end) {
    const int64_t width = s.qkv_width();
    const int64_t C = int64_t{s.NH} * s.HS;
    return {{in.qkv.begin() + begin * width, in.qkv.begin() + end * width},
            {in.dout.begin() + begin * C, in.dout.begin() + end * C},
            {},
            nullptr};
}

// Returns the result of one sequence whose documents, which begin at `begins`, are run one at a time.
template <typename T, typename Run>
AttentionResult<T> documents_one_at_a_time(const AttentionShape& s, const AttentionInputs<T>& in,
                                           std::vector<int> begins, Run run) {
    AttentionResult<T> all;
    all.lse.resize(s.NH * s.T);
    begins.push_back(s.T);
    for (size_t d = 0; d + 1 < begins.size(); ++d) {
        const int begin = begins[d];
        const int n = begins[d + 1] - begin;
        const AttentionResult<T> r = run(AttentionShape{1, n, s.NH, s.NKV, s.HS}, part_of(s, in, begin, begin + n));
        all.out.insert(all.out.end(), r.out.begin(), r.out.end());
        all.dqkv.insert(all.dqkv.end(), r.dqkv.begin(), r.dqkv.end());
        for (int h = 0; h < s.NH; ++h) std::copy_n(r.lse.begin() + h * n, n, all.lse.begin() + h * s.T + begin);
    }
    return all;
}

// first_key for documents that begin at `begins` in every sequence.
inline std::vector<int> documents_at(const std::vector<int>& begins, int B, int T) {
    std::vector<int> start;
    for (int b = 0; b < B; ++b) {
        size_t next = 0;
        for (int t = 0, begin = 0; t < T; ++t) {
            if (next < begins.size() && begins[next] == t) begin = begins[next++];
            start.push_back(begin);
        }
    }
    return start;
}

// First keys of rows that see `window` keys, their own included, but none before documents[b * T + t] (or empty: 0).
inline std::vector<int> windowed(const std::vector<int>& documents, int B, int T, int window) {
    std::vector<int> first_key;
    for (int i = 0; i < B * T; ++i)
        first_key.push_back(std::max(documents.empty() ? 0 : documents[i], i % T - window + 1));
    return first_key;
}

// The windows of the tests: around the sizes of vectors, warps and tiles, and all keys.
inline std::vector<int> test_windows(int T) { return {1, 2, 31, 32, 33, 64, T, T + 5}; }

// A row that sees only itself copies its value and has zero gradients of query and key.
template <typename T, typename Run>
void row_alone_copies_its_value(const AttentionShape& s, AttentionInputs<T> in, Run run) {
    for (int i = 0; i < s.B * s.T; ++i) in.first_key.push_back(i % s.T);
    const AttentionResult<T> r = run(s, in);
    const int64_t C = s.NH * s.HS;
    REQUIRE(same_bits(r.out, columns(in.qkv, s.qkv_width(), 2 * C, 3 * C)));
    REQUIRE(same_bits(columns(r.dqkv, s.qkv_width(), 2 * C, 3 * C), in.dout));
    // dP - D is 0 except for rounding errors of two sums of HS products in float. It is then multiplied by keys and
    // queries of about 1.
    const std::vector<T> dqk = columns(r.dqkv, s.qkv_width(), 0, 2 * C);
    REQUIRE(compare(dqk, std::vector<double>(dqk.size()), 64 * kUnitRoundoff<float> * s.HS));
}

// Tokens from `cut` on change no bit of the rows before.
template <typename T, typename Run>
void later_tokens_change_nothing(const AttentionShape& s, const AttentionInputs<T>& in, int cut, Run run) {
    AttentionInputs<T> other = in;
    for (size_t i = cut * s.qkv_width(); i < other.qkv.size(); ++i)
        other.qkv[i] = T(-3.0f * static_cast<float>(other.qkv[i]));
    AttentionResult<T> a = run(s, in);
    AttentionResult<T> b = run(s, other);
    const int64_t kept = int64_t{cut} * s.NH * s.HS;
    a.out.resize(kept);
    b.out.resize(kept);
    REQUIRE(same_bits(a.out, b.out));
    REQUIRE(same_bits(columns(a.lse, s.T, 0, cut), columns(b.lse, s.T, 0, cut)));
}

// A NaN in the key at `place` reaches every row that sees it and no other.
template <typename T, typename Run>
void nan_reaches_what_sees_it(const AttentionShape& s, AttentionInputs<T> in, int place, Run run) {
    in.qkv[place * s.qkv_width() + s.HS] = T(std::numeric_limits<float>::quiet_NaN());
    const AttentionResult<T> r = run(s, in);
    for (int t = 0; t < s.T; ++t) {
        INFO("row " << t);
        REQUIRE(std::isnan(r.lse[t]) == (t >= place));
        REQUIRE(std::isnan(static_cast<float>(r.out[t * s.HS])) == (t >= place));
    }
}

// Rows do not read tiles of keys, nor keys tiles of rows, that a window hides: NaNs in the first and in the last rows
// reach neither results nor gradients of the rows between, not even multiplied by probabilities of 0.
template <typename T, typename Run>
void hidden_tiles_are_not_read(int HS, Run run) {
    const AttentionShape s{1, 1024, 2, 1, HS};
    AttentionInputs<T> in = random_inputs<T>(s, 90);
    in.first_key = windowed({}, s.B, s.T, 64);
    const int64_t C = int64_t{s.NH} * s.HS;
    for (int t = 0; t < s.T; ++t) {
        if (t >= 128 && t < s.T - 128) continue;
        std::fill_n(in.qkv.begin() + t * s.qkv_width(), s.qkv_width(), T(std::numeric_limits<float>::quiet_NaN()));
        std::fill_n(in.dout.begin() + t * C, C, T(std::numeric_limits<float>::quiet_NaN()));
    }
    const AttentionResult<T> r = run(s, in);
    const auto finite = [](const std::vector<T>& x, int64_t begin, int64_t end) {
        return std::all_of(x.begin() + begin, x.begin() + end,
                           [](T v) { return std::isfinite(static_cast<float>(v)); });
    };
    REQUIRE(finite(r.out, 512 * C, 640 * C));
    REQUIRE(finite(r.dqkv, 512 * s.qkv_width(), 640 * s.qkv_width()));
    REQUIRE(!finite(r.out, 0, C));
}

}  // namespace teon::test
