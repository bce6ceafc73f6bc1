#include "kernels/ops.h"

#include <omp.h>

#include <algorithm>
#include <limits>

#include "runtime/simt.h"
#include "test/compare.h"
#include "test/oracle/attention.h"

#include "test/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

std::string describe(const AttentionShape& s) {
    return fmt::format("B={} T={} NH={} NKV={} HS={}", s.B, s.T, s.NH, s.NKV, s.HS);
}

template <typename T>
struct Inputs {
    std::vector<T> qkv, dout;
    std::vector<int> doc_start;  // empty: one document per sequence
};

// Values of standard deviation 1, queries and keys of `std`.
template <typename T>
Inputs<T> random_inputs(const AttentionShape& s, uint64_t seed, double std = 1.0) {
    Inputs<T> in{random_values<T>(s.B * s.T * s.qkv_width(), seed),
                 random_values<T>(int64_t{s.B} * s.T * s.NH * s.HS, seed + 1),
                 {}};
    for (int64_t row = 0; row < int64_t{s.B} * s.T; row++) {
        for (int c = 0; c < (s.NH + s.NKV) * s.HS; c++) {
            T& x = in.qkv[row * s.qkv_width() + c];
            x = T(static_cast<float>(x) * static_cast<float>(std));
        }
    }
    return in;
}

// Documents of random lengths, many of them of a single token.
std::vector<int> random_documents(int B, int T, uint64_t seed) {
    std::vector<int> cut = random_ints(int64_t{B} * T, seed, 8), start(cut.size());
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            const bool begins = t == 0 || cut[b * T + t] == 0 || (t > 1 && cut[b * T + t - 1] == 0);
            start[b * T + t] = begins ? t : start[b * T + t - 1];
        }
    }
    return start;
}

template <typename T>
struct Result {
    std::vector<T> out;
    std::vector<float> lse;
    std::vector<T> dqkv;
};

template <typename T>
Result<T> run(const AttentionShape& s, const Inputs<T>& in) {
    Context context;
    const Stream& stream = context.stream;
    Guarded<T> qkv(in.qkv, stream), dout(in.dout, stream), out(std::ssize(in.dout), stream),
        dqkv(std::ssize(in.qkv), stream);
    Guarded<float> lse(int64_t{s.B} * s.NH * s.T, stream);
    Guarded<int> doc_start(in.doc_start, stream);
    const int* documents = in.doc_start.empty() ? nullptr : doc_start.data();
    const auto bytes = static_cast<int64_t>(attention_scratch_bytes(s, dtype_of<T>));
    Guarded<std::byte> forward_scratch(bytes, stream), backward_scratch(bytes, stream);
    attention_forward(out.data(), lse.data(), forward_scratch.data(), qkv.data(), documents, s, context);
    attention_backward(dqkv.data(), backward_scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(), documents,
                       s, context);
    forward_scratch.get(), backward_scratch.get();  // check the canaries
    return {out.get(), lse.get(), dqkv.get()};
}

template <typename T>
AttentionOracle<Tracked> oracle(const AttentionShape& s, const Inputs<T>& in) {
    return attention_oracle(widen<Tracked>(in.qkv), widen<Tracked>(in.dout), in.doc_start, s);
}

// Roundings to float that a term may suffer: exp_fast takes up to 4, a dot product's partial sums the rest.
constexpr double kRoundings = 8;

void agrees_with_oracle(const AttentionShape& s, const Inputs<float>& in) {
    INFO(describe(s));
    Result<float> actual = run(s, in);
    AttentionOracle<Tracked> expected = oracle(s, in);
    REQUIRE(compare(actual.lse, expected.lse, kRoundings));
    REQUIRE(compare(actual.out, expected.out, kRoundings));
    REQUIRE(compare(actual.dqkv, expected.dqkv, kRoundings));
}

// What a plain program in bf16 computes, with every matrix rounded to bf16 and float inside of the operations.
AttentionOracle<double> naive_bf16(const AttentionShape& s, const Inputs<bf16>& in) {
    const int heads = s.NH + 2 * s.NKV, group = s.NH / s.NKV;
    auto rounded = [](float x) { return static_cast<float>(bf16(x)); };
    const float scale = rounded(1.0f / std::sqrt(static_cast<float>(s.HS)));
    AttentionOracle<double> o;
    o.out.resize(in.dout.size());
    std::vector<float> dqkv(in.qkv.size()), p(s.T), dp(s.T);
    for (int b = 0; b < s.B; b++) {
        for (int h = 0; h < s.NH; h++) {
            auto row = [&](int t, int head) { return ((int64_t{b} * s.T + t) * heads + head) * s.HS; };
            auto dot = [&](const std::vector<bf16>& x, int64_t i, int64_t j) {
                float sum = 0.0f;
                for (int c = 0; c < s.HS; c++) sum += static_cast<float>(x[i + c]) * static_cast<float>(in.qkv[j + c]);
                return rounded(sum);
            };
            for (int t = 0; t < s.T; t++) {
                const int first = in.doc_start.empty() ? 0 : in.doc_start[b * s.T + t];
                const int64_t y = ((int64_t{b} * s.T + t) * s.NH + h) * s.HS, q = row(t, h);
                auto key = [&](int u) { return row(u, s.NH + h / group); };
                auto value = [&](int u) { return row(u, s.NH + s.NKV + h / group); };
                float maximum = -INFINITY, sum = 0.0f, reduced = 0.0f;
                for (int u = first; u <= t; u++) {
                    p[u] = rounded(scale * dot(in.qkv, q, key(u)));
                    maximum = std::max(maximum, p[u]);
                }
                for (int u = first; u <= t; u++) sum += std::exp(p[u] - maximum);
                for (int u = first; u <= t; u++) {
                    p[u] = rounded(std::exp(p[u] - maximum) / sum);
                    dp[u] = dot(in.dout, y, value(u));
                    reduced += dp[u] * p[u];
                }
                std::vector<float> out(s.HS), dq(s.HS);
                for (int u = first; u <= t; u++) {
                    const float ds = rounded(rounded(p[u] * (dp[u] - reduced)) * scale);
                    for (int c = 0; c < s.HS; c++) {
                        out[c] += p[u] * static_cast<float>(in.qkv[value(u) + c]);
                        dq[c] += ds * static_cast<float>(in.qkv[key(u) + c]);
                        dqkv[key(u) + c] += ds * static_cast<float>(in.qkv[q + c]);
                        dqkv[value(u) + c] += p[u] * static_cast<float>(in.dout[y + c]);
                    }
                }
                for (int c = 0; c < s.HS; c++) o.out[y + c] = rounded(out[c]), dqkv[q + c] = dq[c];
            }
        }
    }
    for (float x : dqkv) o.dqkv.push_back(rounded(x));
    return o;
}

// One tolerance for a whole tensor: `times` the largest error of the naive computation, plus one rounding of its
// largest value (where the naive one is exact by luck, as for a single key) and float's own error.
std::vector<double> naive_tolerance(const std::vector<Tracked>& expected, const std::vector<double>& naive,
                                    double times) {
    double error = 0, value = 0, magnitude = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        error = std::max(error, std::abs(naive[i] - expected[i].value));
        value = std::max(value, std::abs(expected[i].value));
        magnitude = std::max(magnitude, expected[i].magnitude);
    }
    const double tolerance =
        times * error + kUnitRoundoff<bf16> * value + kRoundings * kUnitRoundoff<float> * magnitude;
    return std::vector<double>(expected.size(), tolerance);
}

std::vector<double> values_of(const std::vector<Tracked>& tracked) {
    std::vector<double> values;
    for (const Tracked& x : tracked) values.push_back(x.value);
    return values;
}

// Columns [begin, end) of every row of a (rows, width) tensor.
template <typename E>
std::vector<E> columns(const std::vector<E>& x, int64_t width, int64_t begin, int64_t end) {
    std::vector<E> part;
    for (size_t row = 0; row < x.size(); row += width) {
        part.insert(part.end(), x.begin() + row + begin, x.begin() + row + end);
    }
    return part;
}

void close_to_naive_bf16(const AttentionShape& s, const Inputs<bf16>& in) {
    INFO(describe(s));
    const Result<bf16> actual = run(s, in);
    const AttentionOracle<Tracked> expected = oracle(s, in);
    const AttentionOracle<double> naive = naive_bf16(s, in);
    REQUIRE(compare(actual.lse, expected.lse, kRoundings));
    REQUIRE(compare(actual.out, values_of(expected.out), naive_tolerance(expected.out, naive.out, 2)));
    // dQ, dK and dV each have a scale of their own.
    const int64_t end[] = {s.NH * s.HS, (s.NH + s.NKV) * s.HS, s.qkv_width()};
    for (int part = 0; part < 3; part++) {
        INFO("part " << part << " of dqkv");
        auto take = [&](const auto& x) { return columns(x, s.qkv_width(), part == 0 ? 0 : end[part - 1], end[part]); };
        const std::vector<Tracked> reference = take(expected.dqkv);
        REQUIRE(compare(take(actual.dqkv), values_of(reference), naive_tolerance(reference, take(naive.dqkv), 3)));
    }
}

constexpr int kTimes[] = {1, 31, 33, 64, 97, 128, 257};
constexpr int kHeadSizes[] = {1, 7, 32, 64, 128};
constexpr int kHeads[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 2}, {4, 1}, {4, 4}};

// Every T with every HS; heads, batch and documents take turns.
template <typename F>
void for_shapes(F f) {
    int turn = 0;
    for (int T : kTimes) {
        for (int HS : kHeadSizes) {
            const auto& [NH, NKV] = kHeads[turn % std::size(kHeads)];
            f(AttentionShape{T < 100 ? 2 : 1, T, NH, NKV, HS}, turn % 2 == 1, static_cast<uint64_t>(turn) * 10);
            turn++;
        }
    }
}

template <typename T>
void same_bits_everywhere(const AttentionShape& s) {
    INFO(describe(s));
    Inputs<T> in = random_inputs<T>(s, 40);
    in.doc_start = random_documents(s.B, s.T, 41);
    const Result<T> first = run(s, in);
    auto same = [&] {
        Result<T> r = run(s, in);
        REQUIRE(same_bits(r.out, first.out));
        REQUIRE(same_bits(r.lse, first.lse));
        REQUIRE(same_bits(r.dqkv, first.dqkv));
    };
    same();
    for (const char* order : {"reverse", "random:1", "random:2"}) {
        const std::string before = set_simt_order(order);
        same();
        set_simt_order(before);
    }
    const int threads = omp_get_max_threads();
    for (int n : {1, 3}) {
        omp_set_num_threads(n);
        same();
    }
    omp_set_num_threads(threads);
}

}  // namespace

TEST_CASE("kernels/attention: the oracle's gradient is that of its output, by central differences") {
    const AttentionShape s{2, 5, 4, 2, 3};
    std::vector<double> qkv = random_values<double>(s.B * s.T * s.qkv_width(), 1);
    const std::vector<double> dout = random_values<double>(s.B * s.T * s.NH * s.HS, 2);
    const std::vector<int> doc_start{0, 0, 0, 3, 3, 0, 1, 1, 1, 1};
    auto value = [&](const std::vector<double>& x) {
        const std::vector<double> out = attention_oracle(x, {}, doc_start, s).out;
        double sum = 0;
        for (size_t i = 0; i < out.size(); i++) sum += out[i] * dout[i];
        return sum;
    };
    const double h = 1e-5;
    std::vector<double> differences;
    for (size_t i = 0; i < qkv.size(); i++) {
        std::vector<double> up = qkv, down = qkv;
        up[i] += h, down[i] -= h;
        differences.push_back((value(up) - value(down)) / (2 * h));
    }
    // h^2 times third derivatives of order 10, and float64 cancellation of 1e-15 / h.
    REQUIRE(compare(attention_oracle(qkv, dout, doc_start, s).dqkv, differences, 1e-8));
}

TEST_CASE("kernels/attention: float agrees with the oracle for all shapes, with and without documents") {
    for_shapes([](const AttentionShape& s, bool documents, uint64_t seed) {
        Inputs<float> in = random_inputs<float>(s, seed);
        if (documents) in.doc_start = random_documents(s.B, s.T, seed + 2);
        agrees_with_oracle(s, in);
    });
}

TEST_CASE("kernels/attention: bf16 errs at most twice, in gradients three times, as much as the naive computation") {
    for_shapes([](const AttentionShape& s, bool documents, uint64_t seed) {
        Inputs<bf16> in = random_inputs<bf16>(s, seed);
        if (!documents) in.doc_start = random_documents(s.B, s.T, seed + 2);
        close_to_naive_bf16(s, in);
    });
}

TEST_CASE("kernels/attention: rows that a warp shares agree with the oracle") {
    const AttentionShape s{1, kRowAlone + 52, 1, 1, 3};
    agrees_with_oracle(s, random_inputs<float>(s, 20));
    close_to_naive_bf16(s, random_inputs<bf16>(s, 21));
}

TEST_CASE("kernels/attention: scores far beyond the range of exp") {
    const AttentionShape s{1, 97, 2, 2, 32};
    agrees_with_oracle(s, random_inputs<float>(s, 30, 30.0));
    close_to_naive_bf16(s, random_inputs<bf16>(s, 31, 30.0));
}

TEST_CASE("kernels/attention: a row that sees only itself copies its value and has no gradient in query and key") {
    const AttentionShape s{2, 97, 2, 2, 32};
    Inputs<float> in = random_inputs<float>(s, 50);
    for (int i = 0; i < s.B * s.T; i++) in.doc_start.push_back(i % s.T);
    const Result<float> r = run(s, in);
    const int64_t C = s.NH * s.HS, width = s.qkv_width();
    REQUIRE(same_bits(r.out, columns(in.qkv, width, 2 * C, 3 * C)));
    REQUIRE(same_bits(columns(r.dqkv, width, 2 * C, 3 * C), in.dout));
    agrees_with_oracle(s, in);
}

// Only to rounding: a document that starts at another column has its terms summed in another order.
TEST_CASE("kernels/attention: documents in one sequence equal the documents run one by one, to rounding") {
    const AttentionShape s{1, 257, 4, 2, 16};
    const int start[] = {0, 1, 40, 64, 200, 257};
    Inputs<float> in = random_inputs<float>(s, 60);
    Result<float> expected;
    expected.lse.resize(s.NH * s.T);
    for (int d = 0; d + 1 < static_cast<int>(std::size(start)); d++) {
        const int begin = start[d], end = start[d + 1];
        in.doc_start.insert(in.doc_start.end(), end - begin, begin);
        const AttentionShape alone{1, end - begin, s.NH, s.NKV, s.HS};
        const int64_t width = s.qkv_width(), C = s.NH * s.HS;
        const Result<float> r = run<float>(alone, {{in.qkv.begin() + begin * width, in.qkv.begin() + end * width},
                                                   {in.dout.begin() + begin * C, in.dout.begin() + end * C},
                                                   {}});
        expected.out.insert(expected.out.end(), r.out.begin(), r.out.end());
        expected.dqkv.insert(expected.dqkv.end(), r.dqkv.begin(), r.dqkv.end());
        for (int h = 0; h < s.NH; h++) {
            std::copy_n(r.lse.begin() + h * (end - begin), end - begin, expected.lse.begin() + h * s.T + begin);
        }
    }
    const Result<float> actual = run(s, in);
    const AttentionOracle<Tracked> magnitudes = oracle(s, in);
    auto close = [](const std::vector<float>& a, const std::vector<float>& b, const std::vector<Tracked>& scale) {
        std::vector<double> tolerance;
        for (const Tracked& x : scale) tolerance.push_back(2 * kRoundings * kUnitRoundoff<float> * x.magnitude);
        return compare(a, widen<double>(b), tolerance);
    };
    REQUIRE(close(actual.out, expected.out, magnitudes.out));
    REQUIRE(close(actual.lse, expected.lse, magnitudes.lse));
    REQUIRE(close(actual.dqkv, expected.dqkv, magnitudes.dqkv));
}

TEST_CASE("kernels/attention: later tokens change no bit of earlier rows") {
    const AttentionShape s{1, 150, 2, 1, 16};
    const int cut = 100;
    Inputs<float> in = random_inputs<float>(s, 70), other = in;
    for (size_t i = cut * s.qkv_width(); i < other.qkv.size(); i++) other.qkv[i] = -3.0f * other.qkv[i];
    Result<float> a = run(s, in), b = run(s, other);
    const int64_t kept = int64_t{cut} * s.NH * s.HS;
    a.out.resize(kept), b.out.resize(kept);
    REQUIRE(same_bits(a.out, b.out));
    REQUIRE(same_bits(columns(a.lse, s.T, 0, cut), columns(b.lse, s.T, 0, cut)));
}

TEST_CASE("kernels/attention: a NaN in a key reaches every row that sees it") {
    for (int T : {97, kRowAlone + 20}) {
        const AttentionShape s{1, T, 1, 1, 8};
        Inputs<float> in = random_inputs<float>(s, 80);
        const int place = T - 10;
        in.qkv[place * s.qkv_width() + s.HS] = std::numeric_limits<float>::quiet_NaN();
        const Result<float> r = run(s, in);
        for (int t = 0; t < T; t++) {
            INFO("row " << t);
            REQUIRE(std::isnan(r.lse[t]) == (t >= place));
            REQUIRE(std::isnan(r.out[t * s.HS]) == (t >= place));
        }
    }
}

TEST_CASE("kernels/attention: the same bits in every order of threads, for any number of OS threads, every time") {
    same_bits_everywhere<float>({2, 150, 4, 2, 32});
    same_bits_everywhere<bf16>({2, 150, 4, 2, 32});
    same_bits_everywhere<float>({1, kRowAlone + 33, 2, 1, 8});
}

TEST_CASE("kernels/attention: scratch grows with T, not with its square") {
    for (DType dtype : {DType::f32, DType::bf16}) {
        const size_t once = attention_scratch_bytes({1, 4096, 4, 2, 64}, dtype);
        REQUIRE(attention_scratch_bytes({1, 8192, 4, 2, 64}, dtype) <= 2 * once);
    }
    // Sizes are 64-bit: two buffers of 4 * 128 heads * 128 rows * 8192 floats.
    REQUIRE(attention_scratch_bytes({4, 8192, 128, 128, 64}, DType::f32) == size_t{1} << 32);
}

TEST_CASE("kernels/attention: impossible shapes are refused") {
    REQUIRE_THROWS_AS(attention_scratch_bytes({1, 8, 3, 2, 4}, DType::f32), Error);
    REQUIRE_THROWS_AS(attention_scratch_bytes({1, 0, 2, 2, 4}, DType::f32), Error);
    REQUIRE_THROWS_AS(attention_scratch_bytes({1, 8, 2, 2, 4}, DType::f16), Error);
}
