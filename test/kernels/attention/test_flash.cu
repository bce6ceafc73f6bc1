#include "kernels/attention/flash.h"
#include "kernels/attention/flash_implementations.h"
#include "runtime/cuda/profiler.h"
#include "runtime/simt.h"
#include "test/kernels/attention/cases.h"
#include "test/support/os_threads.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

// *dbias: the bias gradient before the call, replaced by that after it. nullptr: no bias gradient.
AttentionResult<bf16> run_flash(const AttentionShape& s, const AttentionInputs<bf16>& in,
                                std::vector<float>* dbias = nullptr, bool accumulate = false,
                                Kernels kernels = Kernels::fastest) {
    Stream stream;
    stream.set_kernels(kernels);
    Guarded<bf16> qkv(in.qkv, stream);
    Guarded<bf16> dout(in.dout, stream);
    Guarded<bf16> out(std::ssize(in.dout), stream);
    Guarded<bf16> dqkv(std::ssize(in.qkv), stream);
    Guarded<float> lse(int64_t{s.B} * s.NH * s.T, stream);
    Guarded<float> bias(dbias ? *dbias : std::vector<float>(), stream);
    Guarded<int> first_keys(in.first_key, stream);
    const int* first_key = in.first_key.empty() ? nullptr : first_keys.data();
    const size_t bytes = flash_attention_scratch_bytes(s, dbias != nullptr);
    Guarded<std::byte> scratch(static_cast<int64_t>(bytes), stream);
    flash_attention_forward(out.data(), lse.data(), qkv.data(), first_key, s, stream);
    flash_attention_backward(dqkv.data(), scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(), first_key, s,
                             stream, dbias ? bias.data() : nullptr, accumulate);
    scratch.get();  // checks the canaries
    if (dbias) *dbias = bias.get();
    return {out.get(), lse.get(), dqkv.get()};
}

// Without gradients.
AttentionResult<bf16> run_forward(const AttentionShape& s, const AttentionInputs<bf16>& in) {
    Stream stream;
    Guarded<bf16> qkv(in.qkv, stream);
    Guarded<bf16> out(std::ssize(in.dout), stream);
    Guarded<float> lse(int64_t{s.B} * s.NH * s.T, stream);
    Guarded<int> first_keys(in.first_key, stream);
    const int* first_key = in.first_key.empty() ? nullptr : first_keys.data();
    flash_attention_forward(out.data(), lse.data(), qkv.data(), first_key, s, stream);
    return {out.get(), lse.get(), {}};
}

// `times` copies of x.
template <typename E>
std::vector<E> repeat(const std::vector<E>& x, int times) {
    std::vector<E> copies;
    for (int i = 0; i < times; ++i) copies.insert(copies.end(), x.begin(), x.end());
    return copies;
}

void agrees_with_oracle(const AttentionShape& s, const AttentionInputs<bf16>& in) {
    close_to_naive_bf16(s, in, run_flash(s, in));
}

// As a property of every implementation takes it.
AttentionResult<bf16> run(const AttentionShape& s, const AttentionInputs<bf16>& in) { return run_flash(s, in); }

}  // namespace

TEST_CASE("kernels/attention/flash: the implementation for each compute capability and head size") {
    const auto name = [](int capability, int head_size, DType dtype, bool built_for_90a) -> std::string {
        const FlashImplementation* row =
            flash_implementation(capability, head_size, dtype,
                                 [&](const FlashImplementation& r) { return built_for_90a || r.name != "wgmma"; });
        return row == nullptr ? "none" : std::string(row->name);
    };
    for (int head_size : {64, 128}) {
        for (int capability : {0, 80, 86, 89, 100, 120})
            REQUIRE(name(capability, head_size, DType::bf16, true) == "mma");
        REQUIRE(name(90, head_size, DType::bf16, true) == "wgmma");
        REQUIRE(name(90, head_size, DType::bf16, false) == "mma");  // CUDA_ARCH without sm_90a
        REQUIRE(name(90, head_size, DType::f32, true) == "none");
    }
    for (int head_size : {32, 63, 96, 192, 256}) {
        REQUIRE(name(90, head_size, DType::bf16, true) == "none");
        REQUIRE(!flash_attention_supports({1, 16, 2, 1, head_size}, DType::bf16));
    }
    REQUIRE(!flash_attention_supports({1, 16, 2, 1, 64}, DType::f32));
    // This program and device.
    const int capability = device_info().compute_capability;
    REQUIRE(flash_attention_hopper_has_code(64) == (capability == 90));
    REQUIRE(flash_attention_hopper_has_code(128) == (capability == 90));
}

TEST_CASE("kernels/attention/flash: errs at most twice as much as the naive computation, three times in gradients") {
    constexpr int kHeads[][2] = {{2, 2}, {2, 1}, {4, 2}, {4, 1}};
    int turn = 0;
    for (int T : {1, 31, 33, 64, 97, 128, 257})
        for (int HS : {64, 128})
            for (auto [NH, NKV] : kHeads) {
                const AttentionShape s{T < 64 ? 2 : 1, T, NH, NKV, HS};
                AttentionInputs<bf16> in = random_inputs<bf16>(s, 10 * turn);
                if (turn % 4 == 1) in.first_key = random_documents(s.B, s.T, 10 * turn + 2);
                agrees_with_oracle(s, in);
                ++turn;
            }
}

TEST_CASE("kernels/attention/flash: portable kernels run on every device and agree with the oracle") {
    const AttentionShape s{1, 257, 4, 2, 64};
    const AttentionInputs<bf16> in = random_inputs<bf16>(s, 390);
    close_to_naive_bf16(s, in, run_flash(s, in, nullptr, false, Kernels::portable));
    const AttentionResult<bf16> fastest = run_flash(s, in);
    REQUIRE(same_bits(run_flash(s, in, nullptr, false, Kernels::in_turn).dqkv, fastest.dqkv));

    Stream stream;
    Buffer<bf16> x(int64_t{s.T} * s.qkv_width());
    Buffer<float> lse(int64_t{s.T} * s.NH);
    zero(x.data(), x.size(), stream);
    const auto kernel = [&](Kernels kernels) {
        stream.set_kernels(kernels);
        Profiler profiler(stream);
        flash_attention_forward(x.data(), lse.data(), x.data(), nullptr, s, stream);
        return profiler.result().rows.at(0).name;
    };
    REQUIRE(kernel(Kernels::portable).find("hopper") == std::string::npos);
    const bool hopper = kernel(Kernels::fastest).find("hopper") != std::string::npos;
    REQUIRE(hopper == flash_attention_hopper_has_code(64));
}

TEST_CASE("kernels/attention/flash: many tiles of queries and keys, heads that share keys") {
    // 18 tiles of 64 rows: each ring of stages, of which the longest has 6, is filled three times.
    agrees_with_oracle({1, 1100, 2, 1, 64}, random_inputs<bf16>({1, 1100, 2, 1, 64}, 1300));
    agrees_with_oracle({1, 300, 4, 2, 64}, random_inputs<bf16>({1, 300, 4, 2, 64}, 305));  // two groups of heads
    agrees_with_oracle({1, 1000, 1, 1, 128}, random_inputs<bf16>({1, 1000, 1, 1, 128}, 310));
}

// With many heads, a block of sm_90a takes three tiles of 128 queries here, one after the other; with few heads, one.
// Its rings of stages go on from tile to tile, so a stage or phase that does not fails here.
TEST_CASE("kernels/attention/flash: blocks that walk over several tiles of queries give the bits of one tile a block") {
    const DeviceInfo device = device_info();
    const int multiprocessors = device.is_gpu ? device.multiprocessors : 1;
    struct Row {
        int T, HS, blocks;  // of a head, if there are many heads
        std::vector<int> documents;
    };
    for (const Row& row : {Row{700, 64, 2, {130, 250, 400, 640}}, {300, 128, 1, {}}}) {
        const AttentionShape one{1, row.T, 4, 2, row.HS};
        AttentionInputs<bf16> in = random_inputs<bf16>(one, 430 + row.T);
        if (!row.documents.empty()) in.first_key = documents_at(row.documents, 1, row.T);
        AttentionShape many = one;
        many.B = 2 * multiprocessors / row.blocks / one.NH + 1;
        INFO(describe(many));
        const AttentionResult<bf16> expected = run_forward(one, in);
        const AttentionResult<bf16> all =
            run_forward(many, {repeat(in.qkv, many.B), repeat(in.dout, many.B), repeat(in.first_key, many.B)});
        REQUIRE(same_bits(all.out, repeat(expected.out, many.B)));
        REQUIRE(same_bits(all.lse, repeat(expected.lse, many.B)));
    }
}

TEST_CASE("kernels/attention/flash: documents that fill tiles, end inside tiles, or are a single token") {
    for (const std::vector<int>& begins :
         {std::vector<int>{64, 128, 192, 256}, {1, 2, 30, 31, 32, 33, 200}, {299}, {30}}) {
        const AttentionShape s{2, 300, 2, 1, 64};
        AttentionInputs<bf16> in = random_inputs<bf16>(s, 320);
        in.first_key = documents_at(begins, s.B, s.T);
        agrees_with_oracle(s, in);
    }
    const AttentionShape s{1, 200, 2, 2, 128};
    AttentionInputs<bf16> in = random_inputs<bf16>(s, 330);
    in.first_key = random_documents(s.B, s.T, 331);
    agrees_with_oracle(s, in);
}

// A window, T or both end inside tiles. Every second window has documents. T is that of three tiles of 128 rows.
TEST_CASE("kernels/attention/flash: with a window, it errs as little as without") {
    uint64_t turn = 0;
    for (const int HS : {64, 128})
        for (const int window : test_windows(300)) {
            if (window == 1) continue;  // the test of a row that sees only itself
            INFO("window " << window);
            const AttentionShape s{1, 300, 2, 1, HS};
            AttentionInputs<bf16> in = random_inputs<bf16>(s, 700 + 10 * turn);
            const std::vector<int> documents =
                turn++ % 2 == 1 ? documents_at({40, 128, 230}, s.B, s.T) : std::vector<int>();
            in.first_key = windowed(documents, s.B, s.T, window);
            agrees_with_oracle(s, in);
        }
}

TEST_CASE("kernels/attention/flash: tiles that a window hides are not read") {
    for (const int HS : {64, 128}) hidden_tiles_are_not_read<bf16>(HS, run);
}

TEST_CASE("kernels/attention/flash: scores far beyond the range of exp, growing and shrinking along the keys") {
    for (int HS : {64, 128}) {
        const AttentionShape s{1, 150, 2, 1, HS};
        agrees_with_oracle(s, random_inputs<bf16>(s, 340, 30.0));
        // The running maximum changes at every tile, or never after the first.
        for (bool growing : {true, false}) {
            AttentionInputs<bf16> in = random_inputs<bf16>(s, 350);
            for (int t = 0; t < s.T; ++t)
                for (int c = s.NH * HS; c < (s.NH + s.NKV) * HS; ++c) {
                    bf16& x = in.qkv[t * s.qkv_width() + c];
                    x = bf16(static_cast<float>(x) * static_cast<float>(growing ? t : s.T - t));
                }
            agrees_with_oracle(s, in);
        }
    }
}

TEST_CASE(
    "kernels/attention/flash: a row that sees only itself copies its value and has zero gradients of query and key") {
    const AttentionShape s{2, 97, 2, 2, 64};
    row_alone_copies_its_value(s, random_inputs<bf16>(s, 360), run);
}

// The last row alone, and a tile of which no row sees a key.
TEST_CASE("kernels/attention/flash: rows that see no key are 0 and have zero gradients") {
    for (const int HS : {64, 128})
        for (const int blind : {299, 140}) {
            INFO("head size " << HS << ", rows from " << blind << " on");
            const AttentionShape s{1, 300, 1, 1, HS};
            AttentionInputs<bf16> in = random_inputs<bf16>(s, 370);
            in.first_key = documents_at({}, s.B, s.T);
            std::fill(in.first_key.begin() + blind, in.first_key.end(), s.T);
            const AttentionResult<bf16> r = run_flash(s, in);
            const auto is_zero = [](bf16 x) { return static_cast<float>(x) == 0.0f; };
            REQUIRE(std::all_of(r.out.begin() + blind * HS, r.out.end(), is_zero));
            REQUIRE(std::all_of(r.dqkv.begin() + blind * s.qkv_width(), r.dqkv.end(), is_zero));
            for (int t = 0; t < s.T; ++t)
                REQUIRE((r.lse[t] == -std::numeric_limits<float>::infinity()) == (t >= blind));
        }
}

// If documents begin at multiples of every tile size, tiles contain the same rows in both cases.
TEST_CASE("kernels/attention/flash: documents at tile boundaries equal the documents run one at a time, bit for bit") {
    const AttentionShape s{1, 300, 2, 1, 64};
    AttentionInputs<bf16> in = random_inputs<bf16>(s, 380);
    const AttentionResult<bf16> parts = documents_one_at_a_time(s, in, {0, 128}, run);
    in.first_key = documents_at({128}, 1, s.T);
    const AttentionResult<bf16> whole = run(s, in);
    REQUIRE(same_bits(whole.out, parts.out));
    REQUIRE(same_bits(whole.dqkv, parts.dqkv));
}

TEST_CASE("kernels/attention/flash: later tokens change no bit of earlier rows") {
    const AttentionShape s{1, 200, 2, 1, 128};
    later_tokens_change_nothing(s, random_inputs<bf16>(s, 390), 131, run);
}

// The last tile ends with its sequence; what lies behind it in memory is the next one.
TEST_CASE("kernels/attention/flash: NaN in the next sequence or in values of a later tile change no bit") {
    for (const int HS : {64, 128}) {
        const AttentionShape one{1, 150, 2, 1, HS};
        const AttentionInputs<bf16> in = random_inputs<bf16>(one, 395);
        const AttentionResult<bf16> expected = run_flash(one, in);
        const auto begins_with = [](const auto& all, const auto& expected, int64_t n) {
            return same_bits(std::vector(all.begin(), all.begin() + n),
                             std::vector(expected.begin(), expected.begin() + n));
        };
        AttentionInputs<bf16> two = in;
        two.qkv.resize(2 * in.qkv.size(), bf16(NAN));
        two.dout.resize(2 * in.dout.size(), bf16(NAN));
        const AttentionResult<bf16> first = run_flash({2, one.T, 2, 1, HS}, two);
        REQUIRE(begins_with(first.out, expected.out, std::ssize(expected.out)));
        REQUIRE(begins_with(first.lse, expected.lse, std::ssize(expected.lse)));
        REQUIRE(begins_with(first.dqkv, expected.dqkv, std::ssize(expected.dqkv)));

        constexpr int kTile = 128;  // the largest
        AttentionInputs<bf16> later = in;
        for (int t = kTile; t < one.T; ++t)
            for (int c = 0; c < HS; ++c) later.qkv[t * one.qkv_width() + (one.NH + one.NKV) * HS + c] = bf16(NAN);
        REQUIRE(begins_with(run_forward(one, later).out, expected.out, int64_t{kTile} * one.NH * HS));
    }
}

TEST_CASE("kernels/attention/flash: a NaN in a key reaches every row that sees it and no other") {
    const AttentionShape s{1, 150, 1, 1, 64};
    nan_reaches_what_sees_it(s, random_inputs<bf16>(s, 400), 70, run);
}

TEST_CASE("kernels/attention/flash: either backward pass may follow either forward pass") {
    const AttentionShape s{1, 97, 2, 1, 64};
    const AttentionInputs<bf16> in = random_inputs<bf16>(s, 410);
    Context context;
    const Stream& stream = context.stream;
    Guarded<bf16> qkv(in.qkv, stream);
    Guarded<bf16> dout(in.dout, stream);
    Guarded<bf16> out(std::ssize(in.dout), stream);
    Guarded<bf16> dqkv(std::ssize(in.qkv), stream);
    Guarded<float> lse(int64_t{s.NH} * s.T, stream);
    Guarded<std::byte> scratch(static_cast<int64_t>(attention_scratch_bytes(s, DType::bf16)), stream);
    Guarded<std::byte> flash_scratch(static_cast<int64_t>(flash_attention_scratch_bytes(s)), stream);
    flash_attention_forward(out.data(), lse.data(), qkv.data(), nullptr, s, stream);
    attention_backward(dqkv.data(), scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(), nullptr, s,
                       context);
    close_to_naive_bf16(s, in, {out.get(), lse.get(), dqkv.get()});
    attention_forward(out.data(), lse.data(), scratch.data(), qkv.data(), nullptr, s, context);
    flash_attention_backward(dqkv.data(), flash_scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(),
                             nullptr, s, stream);
    close_to_naive_bf16(s, in, {out.get(), lse.get(), dqkv.get()});
}

TEST_CASE("kernels/attention/flash: the same bits on any number of OS threads") {
    for (int HS : {64, 128}) {
        const AttentionShape s{2, 150, 2, 1, HS};
        AttentionInputs<bf16> in = random_inputs<bf16>(s, 420);
        in.first_key = documents_at({10, 64, 120}, s.B, s.T);
        REQUIRE(same_with_any_threads([&] {
            const AttentionResult<bf16> r = run_flash(s, in);
            return bytes_of(r.out, r.lse, r.dqkv);
        }));
    }
}

// Tiles that end inside a warp's rows, tiles that end with a sequence, and every kernel that writes gradients.
TEST_CASE(
    "kernels/attention/flash: the bias gradient is the column sums of the gradient, overwriting or accumulating") {
    int turn = 0;
    for (int T : {1, 33, 128, 300})
        for (int HS : {64, 128}) {
            const AttentionShape s{2, T, 4, 2, HS};
            AttentionInputs<bf16> in = random_inputs<bf16>(s, 600 + 10 * turn);
            if (turn++ % 3 == 1) in.first_key = random_documents(s.B, s.T, turn);
            INFO(describe(s));
            const int64_t width = s.qkv_width();
            std::vector<float> fresh(width, NAN);
            std::vector<float> added = random_values<float>(width, 7);
            std::vector<float> before = added;
            const AttentionResult<bf16> r = run_flash(s, in, &fresh);
            REQUIRE(same_bits(run_flash(s, in, &added, true).dqkv, r.dqkv));
            REQUIRE(same_bits(run_flash(s, in).dqkv, r.dqkv));
            // The sums are float sums of the elements before these are rounded to bf16.
            std::vector<double> sums(width);
            std::vector<double> tolerance(width);
            std::vector<double> sums_added;
            for (size_t i = 0; i < r.dqkv.size(); ++i) {
                const double x = static_cast<float>(r.dqkv[i]);
                sums[i % width] += x;
                tolerance[i % width] += 1.01 * kUnitRoundoff<bf16> * std::abs(x) + 1e-6;
            }
            for (int64_t i = 0; i < width; ++i) sums_added.push_back(sums[i] + before[i]);
            REQUIRE(compare(fresh, sums, tolerance));
            REQUIRE(compare(added, sums_added, tolerance));
        }
}

TEST_CASE(
    "kernels/attention/flash: scratch holds two floats per row, for a bias gradient sums of 16 rows; "
    " unsupported shapes are refused") {
    REQUIRE(flash_attention_scratch_bytes({8, 8192, 12, 12, 64}) == size_t{8} * 12 * 8192 * 8);
    REQUIRE(flash_attention_scratch_bytes({8, 8192, 12, 12, 64}, true) ==
            size_t{8} * 12 * 8192 * 8 + size_t{8} * 8192 / 16 * 2304 * 4);
    REQUIRE(flash_attention_supports({1, 5, 4, 2, 64}, DType::bf16));
    REQUIRE(flash_attention_supports({1, 5, 4, 2, 128}, DType::bf16));
    REQUIRE(!flash_attention_supports({1, 5, 3, 2, 64}, DType::bf16));
    Stream stream;
    Buffer<bf16> x(4096);
    Buffer<float> lse(64);
    REQUIRE_THROWS_AS(flash_attention_forward(x.data(), lse.data(), x.data(), nullptr, {1, 4, 1, 1, 32}, stream),
                      Error);
    REQUIRE_THROWS_AS(flash_attention_forward(x.data() + 1, lse.data(), x.data(), nullptr, {1, 4, 1, 1, 64}, stream),
                      Error);
}
