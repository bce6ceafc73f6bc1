#include "kernels/attention/attention.h"
#include "kernels/attention/rows.h"
#include "kernels/common.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/simt.h"
#include "test/kernels/attention/cases.h"
#include "test/oracle/differences.h"
#include "test/oracle/dropout.h"
#include "test/support/os_threads.h"
#include "test/support/skip.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr int64_t kFirstSample = (int64_t{5} << 32) - 1;

// The functions of kernels/attention/attention.h, for the device, or those for GPUs, which a CPU can run too.
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

// planned: the shape that the scratch is for; by default s.
template <template <typename> typename Attention, typename T>
AttentionResult<T> run_with(const AttentionShape& s, const AttentionInputs<T>& in, DropoutMask mask = {},
                            const std::optional<AttentionShape>& planned = std::nullopt) {
    Context context;
    const Stream& stream = context.stream;
    Guarded<T> qkv(in.qkv, stream);
    Guarded<T> dout(in.dout, stream);
    Guarded<T> out(std::ssize(in.dout), stream);
    Guarded<T> dqkv(std::ssize(in.qkv), stream);
    Guarded<float> lse(int64_t{s.B} * s.NH * s.T, stream);
    Guarded<int> first_keys(in.first_key, stream);
    const int* first_key = in.first_key.empty() ? nullptr : first_keys.data();
    Guarded<int64_t> first_sample(std::vector<int64_t>{kFirstSample}, stream);
    mask.first_sample = first_sample.data();
    const auto bytes = static_cast<int64_t>(Attention<T>::scratch_bytes(planned.value_or(s)));
    Guarded<std::byte> forward_scratch(bytes, stream);
    Guarded<std::byte> backward_scratch(bytes, stream);
    Attention<T>::forward_of(out.data(), lse.data(), forward_scratch.data(), qkv.data(), first_key, s, context, mask);
    Attention<T>::backward_of(dqkv.data(), backward_scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(),
                              first_key, s, context, mask);
    forward_scratch.get();
    backward_scratch.get();  // check the canaries
    return {out.get(), lse.get(), dqkv.get()};
}

template <typename T>
AttentionResult<T> run_masked(const AttentionShape& s, const AttentionInputs<T>& in, const DropoutMask& mask) {
    return run_with<DeviceAttention>(s, in, mask);
}
template <typename T>
AttentionResult<T> run(const AttentionShape& s, const AttentionInputs<T>& in) {
    return run_masked(s, in, {});
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
    in.first_key = random_documents(s.B, s.T, 41);
    auto bytes = [&] {
        const AttentionResult<T> r = run(s, in);
        return bytes_of(r.out, r.lse) + bytes_of(r.dqkv);
    };
    REQUIRE(same_with_any_threads(bytes, {1, 3}));
}

}  // namespace

TEST_CASE("kernels/attention/attention: float agrees with the oracle for all shapes, with and without documents") {
    for_shapes([](const AttentionShape& s, bool documents, uint64_t seed) {
        AttentionInputs<float> in = random_inputs<float>(s, seed);
        if (documents) in.first_key = random_documents(s.B, s.T, seed + 2);
        agrees_with_oracle(s, in);
    });
}

TEST_CASE(
    "kernels/attention/attention: bf16 errs at most twice as much as the naive computation, three times in gradients") {
    for_shapes([](const AttentionShape& s, bool documents, uint64_t seed) {
        AttentionInputs<bf16> in = random_inputs<bf16>(s, seed);
        if (!documents) in.first_key = random_documents(s.B, s.T, seed + 2);
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

TEST_CASE(
    "kernels/attention/attention: the oracle's gradient is the derivative of its output, with documents and dropout") {
    const AttentionShape s{2, 5, 4, 2, 3};
    AttentionInputs<double> in = random_inputs<double>(s, 1);
    for (const bool drops : {false, true}) {
        if (drops) drop(in, s, kMask);
        in.first_key = drops ? std::vector<int>{} : std::vector<int>{0, 0, 0, 3, 3, 0, 1, 1, 1, 1};
        const auto value = [&](const std::vector<double>& x) {
            return dot(attention_oracle(x, {}, in.first_key, s, in.factor).out, in.dout);
        };
        const auto gradient = attention_oracle(in.qkv, in.dout, in.first_key, s, in.factor).dqkv;
        REQUIRE(gradient_error(value, in.qkv, gradient) < 2e-8);  // third derivatives of order 10, times 1 / (1 - p)^2
    }
}

TEST_CASE(
    "kernels/attention/attention: with dropout, float agrees with the oracle and bf16 is as good as the naive "
    "computation") {
    for_shapes([](const AttentionShape& s, bool documents, uint64_t seed) {
        INFO(describe(s));
        AttentionInputs<float> in = random_inputs<float>(s, seed);
        if (documents) in.first_key = random_documents(s.B, s.T, seed + 2);
        drop(in, s, kMask);
        agrees_with_oracle(s, in, run_masked(s, in, kMask));

        // D = rowsum(dO * O) reads O rounded to bf16; the naive computation sums dP * P instead. In small heads the
        // error of D does not average out: with HS = 1 it is that of one product. With T = 1 the naive gradients of
        // query and key are exactly 0.
        if (s.T == 1 || s.HS < 32) return;
        AttentionInputs<bf16> narrow = random_inputs<bf16>(s, seed);
        narrow.first_key = in.first_key;
        drop(narrow, s, kMask);
        close_to_naive_bf16(s, narrow, run_masked(s, narrow, kMask));
    });
}

TEST_CASE("kernels/attention/attention: blocks of rows, which GPUs use, agree with the oracle on every device") {
    for_shapes([](const AttentionShape& s, bool documents, uint64_t seed) {
        const DropoutMask mask = seed % 3 == 0 ? kMask : DropoutMask{};
        AttentionInputs<float> in = random_inputs<float>(s, seed);
        AttentionInputs<bf16> narrow = random_inputs<bf16>(s, seed);
        if (documents) in.first_key = narrow.first_key = random_documents(s.B, s.T, seed + 2);
        if (mask.p > 0) drop(in, s, mask);
        agrees_with_oracle(s, in, run_with<RowsAttention>(s, in, mask));
        if (mask.p == 0) close_to_naive_bf16(s, narrow, run_with<RowsAttention>(s, narrow));
    });
}

// On a CPU: whole and partial tiles of a long sequence, some of which no row of a document sees.
TEST_CASE("kernels/attention/attention: long sequences of several heads and documents agree with the oracle") {
    const AttentionShape s{2, 700, 4, 2, 24};
    AttentionInputs<float> in = random_inputs<float>(s, 25);
    AttentionInputs<bf16> narrow = random_inputs<bf16>(s, 26);
    agrees_with_oracle(s, in);
    for (int t = 0; t < s.B * s.T; ++t) in.first_key.push_back(t % s.T / 290 * 290);
    narrow.first_key = in.first_key;
    close_to_naive_bf16(s, narrow);
    drop(in, s, kMask);
    agrees_with_oracle(s, in, run_masked(s, in, kMask));
}

// The keys before the document hide in a tile that lies wholly below the diagonal. T has tiles of 64 or of 128 keys.
TEST_CASE("kernels/attention/attention: a long document that begins inside an earlier tile agrees with the oracle") {
    for (const int T : {300, 700})
        for (const int begin : {30, 100, 270}) {
            const AttentionShape s{1, T, 2, 1, 8};
            INFO("a document from " << begin << " on");
            AttentionInputs<float> in = random_inputs<float>(s, 29);
            AttentionInputs<bf16> narrow = random_inputs<bf16>(s, 30);
            in.first_key = narrow.first_key = documents_at({0, begin}, s.B, s.T);
            agrees_with_oracle(s, in);
            agrees_with_oracle(s, in, run_with<RowsAttention>(s, in));
            close_to_naive_bf16(s, narrow);
        }
}

// The implementations of this device and of GPUs. Every second window has documents, every third dropout.
TEST_CASE(
    "kernels/attention/attention: with a window, float agrees with the oracle and bf16 with the naive computation") {
    const AttentionShape s{2, 97, 4, 2, 32};
    uint64_t turn = 0;
    for (const int window : test_windows(s.T)) {
        INFO("window " << window);
        AttentionInputs<float> in = random_inputs<float>(s, 100 + turn);
        AttentionInputs<bf16> narrow = random_inputs<bf16>(s, 200 + turn);
        const std::vector<int> documents = turn % 2 == 1 ? random_documents(s.B, s.T, turn) : std::vector<int>();
        in.first_key = narrow.first_key = windowed(documents, s.B, s.T, window);
        const DropoutMask mask = turn % 3 == 2 ? kMask : DropoutMask{};
        if (mask.p > 0) drop(in, s, mask);
        if (mask.p > 0) drop(narrow, s, mask);
        agrees_with_oracle(s, in, run_masked(s, in, mask));
        agrees_with_oracle(s, in, run_with<RowsAttention>(s, in, mask));
        // With a window of 1 the naive gradients of query and key are exactly 0, those by D = rowsum(dO * O) are not.
        if (window > 1) close_to_naive_bf16(s, narrow, run_masked(s, narrow, mask));
        if (window > 1) close_to_naive_bf16(s, narrow, run_with<RowsAttention>(s, narrow, mask));
        ++turn;
    }
}

TEST_CASE("kernels/attention/attention: a long sequence with a window agrees with the oracle") {
    const AttentionShape s{1, 700, 2, 1, 24};
    AttentionInputs<float> in = random_inputs<float>(s, 27);
    AttentionInputs<bf16> narrow = random_inputs<bf16>(s, 28);
    for (const int window : {64, 300}) {
        in.first_key = windowed(documents_at({0, 290}, s.B, s.T), s.B, s.T, window);
        narrow.first_key = in.first_key;
        agrees_with_oracle(s, in);
        close_to_naive_bf16(s, narrow);
    }
}

TEST_CASE("kernels/attention/attention: on a CPU, tiles that a window hides are not read") {
    if (kGpu) SKIP_TEST("blocks of rows multiply all keys before them");
    hidden_tiles_are_not_read<float>(32, &run<float>);
    hidden_tiles_are_not_read<bf16>(32, &run<bf16>);
}

TEST_CASE("kernels/attention/attention: a mask without the batch's samples is refused") {
    Context context;
    float* none = nullptr;
    REQUIRE_THROWS_AS(attention_forward(none, none, none, none, nullptr, {1, 1, 1, 1, 1}, context, kMask), Error);
}

TEST_CASE("kernels/attention/attention: rows that a warp processes agree with the oracle") {
    const AttentionShape s{1, kThreadRow + 52, 1, 1, 3};
    AttentionInputs<float> in = random_inputs<float>(s, 20);
    agrees_with_oracle(s, in);
    close_to_naive_bf16(s, random_inputs<bf16>(s, 21));
    drop(in, s, kMask);
    agrees_with_oracle(s, in, run_masked(s, in, kMask));
}

TEST_CASE("kernels/attention/attention: scores far beyond the range of exp agree with the oracle") {
    const AttentionShape s{1, 97, 2, 2, 32};
    agrees_with_oracle(s, random_inputs<float>(s, 30, 30.0));
    close_to_naive_bf16(s, random_inputs<bf16>(s, 31, 30.0));
}

TEST_CASE(
    "kernels/attention/attention: a row that sees only itself copies its value and has zero gradients of query and "
    "key") {
    const AttentionShape s{2, 97, 2, 2, 32};
    row_alone_copies_its_value(s, random_inputs<float>(s, 50), &run<float>);
}

// Not bit for bit: the order in which terms are added depends on the column at which a document begins.
TEST_CASE("kernels/attention/attention: documents in one sequence equal the documents run one at a time, to rounding") {
    const AttentionShape s{1, 257, 4, 2, 16};
    const std::vector<int> begins = {0, 1, 40, 64, 200};
    AttentionInputs<float> in = random_inputs<float>(s, 60);
    const AttentionResult<float> expected = documents_one_at_a_time(s, in, begins, &run<float>);
    in.first_key = documents_at(begins, 1, s.T);
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

TEST_CASE("kernels/attention/attention: later tokens change no bit of earlier rows") {
    const AttentionShape s{1, 150, 2, 1, 16};
    later_tokens_change_nothing(s, random_inputs<float>(s, 70), 100, &run<float>);
}

TEST_CASE("kernels/attention/attention: a NaN in a key reaches every row that sees it") {
    for (int T : {97, kThreadRow + 20}) {
        const AttentionShape s{1, T, 1, 1, 8};
        nan_reaches_what_sees_it(s, random_inputs<float>(s, 80), T - 10, &run<float>);
    }
}

TEST_CASE("kernels/attention/attention: the same bits on any number of OS threads") {
    same_bits_everywhere<float>({2, 150, 4, 2, 32});
    same_bits_everywhere<bf16>({2, 150, 4, 2, 32});
    same_bits_everywhere<float>({1, kThreadRow + 33, 2, 1, 8});
    same_bits_everywhere<bf16>({1, 700, 4, 2, 24});
}

TEST_CASE("kernels/attention/attention: scratch grows with T, not with its square") {
    for (DType dtype : {DType::f32, DType::bf16}) {
        const size_t once = attention_scratch_bytes({1, 4096, 4, 2, 64}, dtype);
        REQUIRE(attention_scratch_bytes({1, 8192, 4, 2, 64}, dtype) <= 2 * once);
    }
    // Sizes are 64-bit: two buffers of 512 heads * 128 rows * 8192 floats.
    REQUIRE(attention_rows_scratch_bytes<float>({1, 8192, 512, 512, 64}) == size_t{1} << 32);
}

TEST_CASE("kernels/attention/attention: on a CPU, scratch is that of one task for each thread, whatever B is") {
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

TEST_CASE("kernels/attention/attention: scratch for T is enough for any shorter sequences") {
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

TEST_CASE("kernels/attention/attention: impossible shapes are refused") {
    REQUIRE_THROWS_AS(attention_scratch_bytes({1, 8, 3, 2, 4}, DType::f32), Error);
    REQUIRE_THROWS_AS(attention_scratch_bytes({1, 0, 2, 2, 4}, DType::f32), Error);
    REQUIRE_THROWS_AS(attention_scratch_bytes({1, 8, 2, 2, 4}, DType::f16), Error);
}

TEST_CASE("kernels/attention/attention: scratch suffices for fewer and for shorter sequences") {
    auto check = [&]<typename E>(E, const AttentionShape& s, int B, int T) {
        INFO(describe(s) << ", run with B " << B << ", T " << T);
        const AttentionShape part{B, T, s.NH, s.NKV, s.HS};
        run_with<DeviceAttention>(part, random_inputs<E>(part, 1), {}, s);
    };
    check(bf16{}, {8, 256, 4, 4, 32}, 7, 256);
    check(bf16{}, {8, 256, 4, 2, 64}, 7, 256);
    for (int T : {45, 49, 70}) check(float{}, {16, 256, 12, 12, 64}, 16, T);
    for (int B : {13, 15}) check(float{}, {32, 128, 4, 4, 32}, B, 128);
}

TEST_CASE("kernels/attention/attention: a sequence's results do not depend on the number of sequences") {
    if (kGpu) SKIP_TEST("a GPU's library may choose another algorithm for another batch");
    const int B = 11;
    auto check = [&]<typename E>(E, const AttentionShape& s) {
        AttentionInputs<E> in = random_inputs<E>(s, 1);
        for (int b = 0; b < B; ++b)  // sequence b has documents of 20 + b tokens
            for (int t = 0; t < s.T; ++t) in.first_key.push_back(t / (20 + b) * (20 + b));
        const AttentionResult<E> all = run(s, in);
        AttentionShape few = s;
        few.B = 4;
        for (int64_t b : {0, 4, 7}) {
            const int64_t begin = b * s.T;
            const int64_t end = begin + 4 * s.T;
            AttentionInputs<E> part = part_of(s, in, begin, end);
            part.first_key.assign(in.first_key.begin() + begin, in.first_key.begin() + end);
            const AttentionResult<E> r = run(few, part);
            const int64_t C = int64_t{s.NH} * s.HS;
            REQUIRE(same_bits(r.out, {all.out.begin() + begin * C, all.out.begin() + end * C}));
            REQUIRE(
                same_bits(r.dqkv, {all.dqkv.begin() + begin * s.qkv_width(), all.dqkv.begin() + end * s.qkv_width()}));
        }
    };
    for (const AttentionShape& s : {AttentionShape{B, 160, 6, 3, 16}, AttentionShape{B, 160, 16, 16, 64}}) {
        check(float{}, s);
        check(bf16{}, s);
    }
}
