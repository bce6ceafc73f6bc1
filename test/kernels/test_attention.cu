#include "kernels/attention.h"
#include "kernels/common.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/simt.h"
#include "test/kernels/attention_cases.h"
#include "test/oracle/dropout.h"
#include "test/support/os_threads.h"
#include "test/support/skip.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr int64_t kFirstSample = (int64_t{5} << 32) - 1;

// The functions of kernels/attention.h, for the device, or those for GPUs, which a CPU can run too.
template <typename T>
struct DeviceAttention {
    static size_t scratch_bytes(const AttentionShape& s) { return attention_scratch_bytes(s, dtype_of<T>); }
    static constexpr auto forward_of = &attention_forward<T>;
    static constexpr auto backward_of = &attention_backward<T>;
};
template <typename T>
struct RowsAttention {
    static size_t scratch_bytes(const AttentionShape& s) { return attention_rows_scratch_bytes<T>(s); }
    static constexpr auto forward_of = &attention_rows_forward<T>;
    static constexpr auto backward_of = &attention_rows_backward<T>;
};

template <template <typename> typename Attention, typename T>
AttentionResult<T> run_with(const AttentionShape& s, const AttentionInputs<T>& in, DropoutMask mask = {}) {
    Context context;
    const Stream& stream = context.stream;
    Guarded<T> qkv(in.qkv, stream);
    Guarded<T> dout(in.dout, stream);
    Guarded<T> out(std::ssize(in.dout), stream);
    Guarded<T> dqkv(std::ssize(in.qkv), stream);
    Guarded<float> lse(int64_t{s.B} * s.NH * s.T, stream);
    Guarded<int> doc_start(in.doc_start, stream);
    const int* documents = in.doc_start.empty() ? nullptr : doc_start.data();
    Guarded<int64_t> first_sample(std::vector<int64_t>{kFirstSample}, stream);
    mask.first_sample = first_sample.data();
    const auto bytes = static_cast<int64_t>(Attention<T>::scratch_bytes(s));
    Guarded<std::byte> forward_scratch(bytes, stream);
    Guarded<std::byte> backward_scratch(bytes, stream);
    Attention<T>::forward_of(out.data(), lse.data(), forward_scratch.data(), qkv.data(), documents, s, context, mask);
    Attention<T>::backward_of(dqkv.data(), backward_scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(),
                              documents, s, context, mask);
    forward_scratch.get();
    backward_scratch.get();  // check the canaries
    return {out.get(), lse.get(), dqkv.get()};
}

template <typename T>
AttentionResult<T> run(const AttentionShape& s, const AttentionInputs<T>& in, const DropoutMask& mask = {}) {
    return run_with<DeviceAttention>(s, in, mask);
}

void agrees_with_oracle(const AttentionShape& s, const AttentionInputs<float>& in,
                        const AttentionResult<float>& actual) {
    INFO(describe(s));
    AttentionOracle<Tracked> expected = oracle(s, in);
    REQUIRE(compare(actual.lse, expected.lse, kRoundings));
    REQUIRE(compare(actual.out, expected.out, kRoundings));
    REQUIRE(compare(actual.dqkv, expected.dqkv, kRoundings));
}

void agrees_with_oracle(const AttentionShape& s, const AttentionInputs<float>& in) {
    agrees_with_oracle(s, in, run(s, in));
}

void close_to_naive_bf16(const AttentionShape& s, const AttentionInputs<bf16>& in) {
    close_to_naive_bf16(s, in, run(s, in));
}

constexpr int kTimes[] = {1, 31, 33, 64, 97, 128, 257};
constexpr int kHeadSizes[] = {1, 7, 32, 64, 128};
constexpr int kHeads[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 2}, {4, 1}, {4, 4}};

// Every T with every HS. The numbers of heads and sequences vary, and every second shape sets `documents`.
template <typename F>
void for_shapes(F f) {
    int turn = 0;
    for (int T : kTimes)
        for (int HS : kHeadSizes) {
            const auto& [NH, NKV] = kHeads[turn % std::size(kHeads)];
            f(AttentionShape{T < 100 ? 2 : 1, T, NH, NKV, HS}, turn % 2 == 1, static_cast<uint64_t>(turn) * 10);
            ++turn;
        }
}

template <typename T>
void same_bits_everywhere(const AttentionShape& s) {
    INFO(describe(s));
    AttentionInputs<T> in = random_inputs<T>(s, 40);
    in.doc_start = random_documents(s.B, s.T, 41);
    auto bytes = [&] {
        const AttentionResult<T> r = run(s, in);
        return bytes_of(r.out, r.lse) + bytes_of(r.dqkv);
    };
    REQUIRE(same_with_any_threads(bytes, {1, 3}));
}

}  // namespace

TEST_CASE("kernels/attention: the oracle's gradient matches central differences of its output") {
    const AttentionShape s{2, 5, 4, 2, 3};
    std::vector<double> qkv = random_values<double>(s.B * s.T * s.qkv_width(), 1);
    const std::vector<double> dout = random_values<double>(s.B * s.T * s.NH * s.HS, 2);
    const std::vector<int> doc_start{0, 0, 0, 3, 3, 0, 1, 1, 1, 1};
    auto value = [&](const std::vector<double>& x) {
        const std::vector<double> out = attention_oracle(x, {}, doc_start, s).out;
        double sum = 0;
        for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
        return sum;
    };
    const double h = 1e-5;
    std::vector<double> differences;
    for (size_t i = 0; i < qkv.size(); ++i) {
        std::vector<double> up = qkv;
        std::vector<double> down = qkv;
        up[i] += h;
        down[i] -= h;
        differences.push_back((value(up) - value(down)) / (2 * h));
    }
    // Truncation: h^2 times third derivatives of order 10. Cancellation in float64: 1e-15 / h.
    REQUIRE(compare(attention_oracle(qkv, dout, doc_start, s).dqkv, differences, 1e-8));
}

TEST_CASE("kernels/attention: float agrees with the oracle for all shapes, with and without documents") {
    for_shapes([](const AttentionShape& s, bool documents, uint64_t seed) {
        AttentionInputs<float> in = random_inputs<float>(s, seed);
        if (documents) in.doc_start = random_documents(s.B, s.T, seed + 2);
        agrees_with_oracle(s, in);
    });
}

TEST_CASE("kernels/attention: bf16 errs at most twice as much as the naive computation, three times in gradients") {
    for_shapes([](const AttentionShape& s, bool documents, uint64_t seed) {
        AttentionInputs<bf16> in = random_inputs<bf16>(s, seed);
        if (!documents) in.doc_start = random_documents(s.B, s.T, seed + 2);
        close_to_naive_bf16(s, in);
    });
}

namespace {

// Sets the factors of the mask, from its definition.
template <typename T>
void drop(AttentionInputs<T>& in, const AttentionShape& s, const DropoutMask& m) {
    in.factor = [=](int b, int h, int t, int key) {
        return dropout_factor(m.p, m.seed, m.site, static_cast<uint64_t>(kFirstSample + b), h * s.T + t, key);
    };
}

const DropoutMask kMask{.p = 0.3f, .seed = (uint64_t{7} << 32) + 11, .site = 5};

}  // namespace

TEST_CASE("kernels/attention: the oracle's gradient with dropout matches central differences of its output") {
    const AttentionShape s{2, 5, 4, 2, 3};
    AttentionInputs<double> in = random_inputs<double>(s, 1);
    drop(in, s, kMask);
    auto value = [&](const std::vector<double>& x) {
        const std::vector<double> out = attention_oracle(x, {}, {}, s, in.factor).out;
        return std::inner_product(out.begin(), out.end(), in.dout.begin(), 0.0);
    };
    const double h = 1e-5;
    std::vector<double> differences;
    for (size_t i = 0; i < in.qkv.size(); ++i) {
        std::vector<double> up = in.qkv;
        std::vector<double> down = in.qkv;
        up[i] += h;
        down[i] -= h;
        differences.push_back((value(up) - value(down)) / (2 * h));
    }
    // As without dropout, times 1 / (1 - p)^2.
    REQUIRE(compare(attention_oracle(in.qkv, in.dout, {}, s, in.factor).dqkv, differences, 2e-8));
}

TEST_CASE(
    "kernels/attention: with dropout, float agrees with the oracle and bf16 is as good as the naive computation") {
    for_shapes([](const AttentionShape& s, bool documents, uint64_t seed) {
        INFO(describe(s));
        AttentionInputs<float> in = random_inputs<float>(s, seed);
        if (documents) in.doc_start = random_documents(s.B, s.T, seed + 2);
        drop(in, s, kMask);
        agrees_with_oracle(s, in, run(s, in, kMask));

        // D = rowsum(dO * O) reads O rounded to bf16; the naive computation sums dP * P instead. In small heads the
        // error of D does not average out: with HS = 1 it is that of one product. With T = 1 the naive gradients of
        // query and key are exactly 0.
        if (s.T == 1 || s.HS < 32) return;
        AttentionInputs<bf16> narrow = random_inputs<bf16>(s, seed);
        narrow.doc_start = in.doc_start;
        drop(narrow, s, kMask);
        close_to_naive_bf16(s, narrow, run(s, narrow, kMask));
    });
}

TEST_CASE("kernels/attention: with dropout, rows that a warp processes agree with the oracle") {
    const AttentionShape s{1, kThreadRow + 52, 1, 1, 3};
    AttentionInputs<float> in = random_inputs<float>(s, 20);
    drop(in, s, kMask);
    agrees_with_oracle(s, in, run(s, in, kMask));
}

TEST_CASE("kernels/attention: blocks of rows, which GPUs use, agree with the oracle on every device") {
    for_shapes([](const AttentionShape& s, bool documents, uint64_t seed) {
        const DropoutMask mask = seed % 3 == 0 ? kMask : DropoutMask{};
        AttentionInputs<float> in = random_inputs<float>(s, seed);
        AttentionInputs<bf16> narrow = random_inputs<bf16>(s, seed);
        if (documents) in.doc_start = narrow.doc_start = random_documents(s.B, s.T, seed + 2);
        if (mask.p > 0) drop(in, s, mask);
        agrees_with_oracle(s, in, run_with<RowsAttention>(s, in, mask));
        if (mask.p == 0) close_to_naive_bf16(s, narrow, run_with<RowsAttention>(s, narrow));
    });
}

// On a CPU: whole and partial tiles of a long sequence, some of which no row of a document sees.
TEST_CASE("kernels/attention: long sequences of several heads and documents agree with the oracle") {
    const AttentionShape s{2, 700, 4, 2, 24};
    AttentionInputs<float> in = random_inputs<float>(s, 25);
    AttentionInputs<bf16> narrow = random_inputs<bf16>(s, 26);
    agrees_with_oracle(s, in);
    for (int t = 0; t < s.B * s.T; ++t) in.doc_start.push_back(t % s.T / 290 * 290);
    narrow.doc_start = in.doc_start;
    close_to_naive_bf16(s, narrow);
    drop(in, s, kMask);
    agrees_with_oracle(s, in, run(s, in, kMask));
}

TEST_CASE("kernels/attention: a mask without the batch's samples is refused") {
    Context context;
    float* none = nullptr;
    REQUIRE_THROWS_AS(attention_forward(none, none, none, none, nullptr, {1, 1, 1, 1, 1}, context, kMask), Error);
}

TEST_CASE("kernels/attention: rows that a warp processes agree with the oracle") {
    const AttentionShape s{1, kThreadRow + 52, 1, 1, 3};
    agrees_with_oracle(s, random_inputs<float>(s, 20));
    close_to_naive_bf16(s, random_inputs<bf16>(s, 21));
}

TEST_CASE("kernels/attention: scores far beyond the range of exp agree with the oracle") {
    const AttentionShape s{1, 97, 2, 2, 32};
    agrees_with_oracle(s, random_inputs<float>(s, 30, 30.0));
    close_to_naive_bf16(s, random_inputs<bf16>(s, 31, 30.0));
}

TEST_CASE("kernels/attention: a row that sees only itself copies its value and has zero gradients of query and key") {
    const AttentionShape s{2, 97, 2, 2, 32};
    AttentionInputs<float> in = random_inputs<float>(s, 50);
    for (int i = 0; i < s.B * s.T; ++i) in.doc_start.push_back(i % s.T);
    const AttentionResult<float> r = run(s, in);
    const int64_t C = s.NH * s.HS;
    const int64_t width = s.qkv_width();
    REQUIRE(same_bits(r.out, columns(in.qkv, width, 2 * C, 3 * C)));
    REQUIRE(same_bits(columns(r.dqkv, width, 2 * C, 3 * C), in.dout));
    agrees_with_oracle(s, in);
}

// Not bit for bit: the order in which terms are added depends on the column at which a document begins.
TEST_CASE("kernels/attention: documents in one sequence equal the documents run one at a time, to rounding") {
    const AttentionShape s{1, 257, 4, 2, 16};
    const int start[] = {0, 1, 40, 64, 200, 257};
    AttentionInputs<float> in = random_inputs<float>(s, 60);
    AttentionResult<float> expected;
    expected.lse.resize(s.NH * s.T);
    for (int d = 0; d + 1 < static_cast<int>(std::size(start)); ++d) {
        const int begin = start[d];
        const int end = start[d + 1];
        in.doc_start.insert(in.doc_start.end(), end - begin, begin);
        const AttentionShape alone{1, end - begin, s.NH, s.NKV, s.HS};
        const int64_t width = s.qkv_width();
        const int64_t C = s.NH * s.HS;
        const AttentionResult<float> r =
            run<float>(alone, {{in.qkv.begin() + begin * width, in.qkv.begin() + end * width},
                               {in.dout.begin() + begin * C, in.dout.begin() + end * C},
                               {},
                               nullptr});
        expected.out.insert(expected.out.end(), r.out.begin(), r.out.end());
        expected.dqkv.insert(expected.dqkv.end(), r.dqkv.begin(), r.dqkv.end());
        for (int h = 0; h < s.NH; ++h)
            std::copy_n(r.lse.begin() + h * (end - begin), end - begin, expected.lse.begin() + h * s.T + begin);
    }
    const AttentionResult<float> actual = run(s, in);
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
    AttentionInputs<float> in = random_inputs<float>(s, 70);
    AttentionInputs<float> other = in;
    for (size_t i = cut * s.qkv_width(); i < other.qkv.size(); ++i) other.qkv[i] = -3.0f * other.qkv[i];
    AttentionResult<float> a = run(s, in);
    AttentionResult<float> b = run(s, other);
    const int64_t kept = int64_t{cut} * s.NH * s.HS;
    a.out.resize(kept);
    b.out.resize(kept);
    REQUIRE(same_bits(a.out, b.out));
    REQUIRE(same_bits(columns(a.lse, s.T, 0, cut), columns(b.lse, s.T, 0, cut)));
}

TEST_CASE("kernels/attention: a NaN in a key reaches every row that sees it") {
    for (int T : {97, kThreadRow + 20}) {
        const AttentionShape s{1, T, 1, 1, 8};
        AttentionInputs<float> in = random_inputs<float>(s, 80);
        const int place = T - 10;
        in.qkv[place * s.qkv_width() + s.HS] = std::numeric_limits<float>::quiet_NaN();
        const AttentionResult<float> r = run(s, in);
        for (int t = 0; t < T; ++t) {
            INFO("row " << t);
            REQUIRE(std::isnan(r.lse[t]) == (t >= place));
            REQUIRE(std::isnan(r.out[t * s.HS]) == (t >= place));
        }
    }
}

TEST_CASE("kernels/attention: the same bits on any number of OS threads") {
    same_bits_everywhere<float>({2, 150, 4, 2, 32});
    same_bits_everywhere<bf16>({2, 150, 4, 2, 32});
    same_bits_everywhere<float>({1, kThreadRow + 33, 2, 1, 8});
    same_bits_everywhere<bf16>({1, 700, 4, 2, 24});
}

TEST_CASE("kernels/attention: scratch grows with T, not with its square") {
    for (DType dtype : {DType::f32, DType::bf16}) {
        const size_t once = attention_scratch_bytes({1, 4096, 4, 2, 64}, dtype);
        REQUIRE(attention_scratch_bytes({1, 8192, 4, 2, 64}, dtype) <= 2 * once);
    }
    // Sizes are 64-bit: two buffers of 512 heads * 128 rows * 8192 floats.
    REQUIRE(attention_rows_scratch_bytes<float>({1, 8192, 512, 512, 64}) == size_t{1} << 32);
}

TEST_CASE("kernels/attention: on a CPU, scratch is that of one task for each thread, whatever B is") {
    if (kGpu) SKIP_TEST("GPUs process all sequences at once");
    const AttentionShape s{1, 4096, 8, 8, 32};
    size_t one_thread = 0;
    {
        const ScopedThreads scope(1);
        one_thread = attention_scratch_bytes(s, DType::bf16);
    }
    // Two tiles of 128 keys and 256 queries in float and in bf16, and the gradient of the queries of one head.
    const size_t tiles = size_t{2} * 128 * 256 * (4 + 2);
    const size_t gradient = size_t{4096} * 32 * 4;
    REQUIRE(one_thread >= tiles + gradient);
    REQUIRE(one_thread <= tiles + gradient + (size_t{128} << 10));
    const ScopedThreads scope(3);
    REQUIRE(attention_scratch_bytes(s, DType::bf16) == 3 * one_thread);
    REQUIRE(attention_scratch_bytes({64, 4096, 8, 8, 32}, DType::bf16) == 3 * one_thread);
}

TEST_CASE("kernels/attention: scratch for T is enough for any shorter sequences") {
    for (DType dtype : {DType::f32, DType::bf16})
        for (int heads : {1, 2, 12})
            for (int B : {1, 3, 64, 1000}) {
                size_t bytes = 0;
                for (int T = 1; T <= 700; ++T) {
                    const size_t bytes_of_shorter = bytes;
                    bytes = attention_scratch_bytes({B, T, heads, heads, 8}, dtype);
                    REQUIRE(bytes >= bytes_of_shorter);
                }
            }
}

TEST_CASE("kernels/attention: impossible shapes are refused") {
    REQUIRE_THROWS_AS(attention_scratch_bytes({1, 8, 3, 2, 4}, DType::f32), Error);
    REQUIRE_THROWS_AS(attention_scratch_bytes({1, 0, 2, 2, 4}, DType::f32), Error);
    REQUIRE_THROWS_AS(attention_scratch_bytes({1, 8, 2, 2, 4}, DType::f16), Error);
}

TEST_CASE("kernels/attention: scratch suffices for fewer and for shorter sequences") {
    Context context;
    const Stream& stream = context.stream;
    auto check = [&]<typename E>(E, const AttentionShape& s, int B, int T) {
        INFO(describe(s) << ", run with B " << B << ", T " << T);
        const AttentionShape part{B, T, s.NH, s.NKV, s.HS};
        const int64_t packed = int64_t{B} * T * s.qkv_width();
        const int64_t plain = int64_t{B} * T * s.NH * s.HS;
        Guarded<E> qkv(random_values<E>(packed, 1), stream);
        Guarded<E> dout(random_values<E>(plain, 2), stream);
        Guarded<E> out(plain, stream);
        Guarded<E> dqkv(packed, stream);
        Guarded<float> lse(int64_t{B} * s.NH * T, stream);
        Guarded<std::byte> scratch(static_cast<int64_t>(attention_scratch_bytes(s, dtype_of<E>)), stream);
        attention_forward(out.data(), lse.data(), scratch.data(), qkv.data(), nullptr, part, context);
        attention_backward(dqkv.data(), scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(), nullptr, part,
                           context);
        scratch.get();  // checks the canaries
    };
    check(bf16{}, {8, 256, 4, 4, 32}, 7, 256);
    check(bf16{}, {8, 256, 4, 2, 64}, 7, 256);
    for (int T : {45, 49, 70}) check(float{}, {16, 256, 12, 12, 64}, 16, T);
    for (int B : {13, 15}) check(float{}, {32, 128, 4, 4, 32}, B, 128);
}

TEST_CASE("kernels/attention: a sequence's results do not depend on the number of sequences") {
    if (kGpu) SKIP_TEST("a GPU's library may choose another algorithm for another batch");
    Context context;
    const int B = 11;
    for (const AttentionShape& s : {AttentionShape{B, 160, 6, 3, 16}, AttentionShape{B, 160, 16, 16, 64}}) {
        auto run = [&]<typename E>(E, const AttentionShape& shape, int first) {
            const int64_t packed = s.T * s.qkv_width();
            const int64_t plain = int64_t{s.T} * s.NH * s.HS;
            const auto all_qkv = random_values<E>(B * packed, 1);
            const auto all_dout = random_values<E>(B * plain, 2);
            auto part = [&](const std::vector<E>& x, int64_t size) {
                return std::vector<E>(x.begin() + first * size, x.begin() + (first + shape.B) * size);
            };
            Guarded<E> qkv(part(all_qkv, packed), context.stream);
            Guarded<E> dout(part(all_dout, plain), context.stream);
            Guarded<E> out(shape.B * plain, context.stream);
            Guarded<E> dqkv(shape.B * packed, context.stream);
            Guarded<float> lse(int64_t{shape.B} * s.NH * s.T, context.stream);
            std::vector<int> starts;  // sequence b has documents of 20 + b tokens
            for (int b = first; b < first + shape.B; ++b)
                for (int t = 0; t < s.T; ++t) starts.push_back(t / (20 + b) * (20 + b));
            Guarded<int> doc_start(starts, context.stream);
            Guarded<std::byte> scratch(attention_scratch_bytes(shape, dtype_of<E>), context.stream);
            attention_forward(out.data(), lse.data(), scratch.data(), qkv.data(), doc_start.data(), shape, context);
            attention_backward(dqkv.data(), scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(),
                               doc_start.data(), shape, context);
            return std::pair(out.get(), dqkv.get());
        };
        auto check = [&]<typename E>(E e) {
            const auto of_sequences = [](const std::vector<E>& x, int first, int64_t size) {
                return std::vector<E>(x.begin() + first * size, x.begin() + (first + 4) * size);
            };
            const auto all = run(e, s, 0);
            for (int b : {0, 4, 7}) {
                AttentionShape few = s;
                few.B = 4;
                const auto [o, d] = run(e, few, b);
                REQUIRE(same_bits(o, of_sequences(all.first, b, int64_t{s.T} * s.NH * s.HS)));
                REQUIRE(same_bits(d, of_sequences(all.second, b, s.T * s.qkv_width())));
            }
        };
        check(float{});
        check(bf16{});
    }
}
