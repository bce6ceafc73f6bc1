#include "kernels/reduce.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

// One thread adds at most a few hundred terms. Rounding errors of partial sums average to far less than one per term.
static constexpr double kRoundings = 4.0;

// Lengths below, at and above those that take one more block. The largest takes more than 2048 blocks.
static const std::vector<int64_t> kSizes = {1,   31,    33,    97,     128,     257,
                                            768, 32768, 32769, 100003, 1 << 20, (1 << 25) + 77};

using Reduction = void (*)(float*, void*, const float*, int64_t, bool, const Stream&);

TEST_CASE("kernels/reduce: sums and sums of squares match the oracle, `=` and `+=`") {
    Stream stream;
    Guarded<std::byte> scratch(static_cast<int64_t>(reduce_scratch_bytes()), stream);
    for (int64_t n : kSizes) {
        const auto x = random_values<float>(n, 1, 1.0, 0.1);
        Guarded<float> x_device(x, stream);
        Guarded<float> out(1, stream);
        Tracked sum;
        Tracked squares;
        for (float v : x) {
            sum += Tracked(v);
            squares += Tracked(v) * Tracked(v);
        }
        for (auto [reduction, expected] :
             {std::pair<Reduction, Tracked>{reduce_sum, sum}, {reduce_sum_squares, squares}}) {
            INFO("n = " << n);
            out.set({1e30f});
            reduction(out.data(), scratch.data(), x_device.data(), n, false, stream);
            REQUIRE(compare(out.get(), std::vector<Tracked>{expected}, kRoundings));
            out.set({-7.5f});
            reduction(out.data(), scratch.data(), x_device.data(), n, true, stream);
            REQUIRE(compare(out.get(), std::vector<Tracked>{Tracked(-7.5) + expected}, kRoundings));
            scratch.get();
        }
    }
}

TEST_CASE("kernels/reduce: every element counts, at any alignment") {
    Stream stream;
    Guarded<std::byte> scratch(static_cast<int64_t>(reduce_scratch_bytes()), stream);
    const int64_t n = 70001;
    Guarded<float> x(std::vector<float>(n, 1.0f), stream);
    Guarded<float> out(1, stream);
    for (int64_t begin : {0, 1, 7, 16, 33}) {
        reduce_sum(out.data(), scratch.data(), x.data() + begin, n - begin, false, stream);
        REQUIRE(out.get()[0] == static_cast<float>(n - begin));
    }
    // An empty sum is 0.
    reduce_sum(out.data(), scratch.data(), x.data(), 0, false, stream);
    REQUIRE(out.get()[0] == 0.0f);
}

TEST_CASE("kernels/reduce: an array that needs more than 4096 blocks is summed in longer runs") {
    Stream stream;
    Guarded<std::byte> scratch(static_cast<int64_t>(reduce_scratch_bytes()), stream);
    const int64_t run = (1 << 14) + 32;
    const int64_t n = 4096 * int64_t{1 << 14} + 77;
    std::vector<float> ends(n);  // the first and the last element of each run is 1
    for (int64_t begin = 0; begin < n; begin += run) ends[begin] = ends[std::min(n, begin + run) - 1] = 1.0f;
    Guarded<float> x(ends, stream);
    Guarded<float> out(1, stream);
    reduce_sum(out.data(), scratch.data(), x.data(), n, false, stream);
    REQUIRE(out.get()[0] == static_cast<float>(2 * ((n + run - 1) / run)));
    scratch.get();  // checks the canaries
}

TEST_CASE("kernels/reduce: add() adds float and bf16 to float, at any alignment") {
    Stream stream;
    for (int64_t n : {1, 31, 97, 4099})
        for (int64_t begin : {0, 1, 4}) {
            const std::vector<float> before = random_values<float>(n + begin, 1);
            const std::vector<float> x = random_values<float>(n + begin, 2);
            const std::vector<bf16> y = random_values<bf16>(n + begin, 3);
            Guarded<float> sum(before, stream);
            Guarded<float> x_device(x, stream);
            Guarded<bf16> y_device(y, stream);
            add(sum.data() + begin, x_device.data() + begin, n, stream);
            add(sum.data() + begin, y_device.data() + begin, n, stream);
            std::vector<float> expected = before;
            for (int64_t i = begin; i < n + begin; ++i) expected[i] = expected[i] + x[i] + float{y[i]};
            REQUIRE(same_bits(sum.get(), expected));
        }
}

TEST_CASE("kernels/reduce: one NaN anywhere makes the sum NaN") {
    Stream stream;
    Guarded<std::byte> scratch(static_cast<int64_t>(reduce_scratch_bytes()), stream);
    for (int64_t position : {0, 1, 40000, 70000}) {
        std::vector<float> x(70001, 1.0f);
        x[position] = NAN;
        Guarded<float> x_device(x, stream);
        Guarded<float> out(1, stream);
        reduce_sum_squares(out.data(), scratch.data(), x_device.data(), 70001, false, stream);
        REQUIRE(std::isnan(out.get()[0]));
    }
}

TEST_CASE("kernels/reduce: the same bits on any number of OS threads") {
    Stream stream;
    Guarded<std::byte> scratch(static_cast<int64_t>(reduce_scratch_bytes()), stream);
    Guarded<float> x(random_values<float>(200003, 1), stream);
    Guarded<float> out(std::vector<float>{0.0f, 0.0f}, stream);
    REQUIRE(same_with_any_threads([&] {
        reduce_sum(out.data(), scratch.data(), x.data(), x.size(), false, stream);
        reduce_sum_squares(out.data() + 1, scratch.data(), x.data(), x.size(), false, stream);
        return bytes_of(out.get());
    }));
}
