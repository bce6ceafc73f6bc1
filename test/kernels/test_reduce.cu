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

namespace {

// Reduces to one number, which is `before` at first, and checks the canaries.
struct Reducer {
    Stream stream;
    Guarded<std::byte> scratch{static_cast<int64_t>(reduce_scratch_bytes()), stream};
    Guarded<float> out{1, stream};

    std::vector<float> operator()(Reduction reduction, const float* x, int64_t n, float before = 1e30f,
                                  bool accumulate = false) {
        out.set({before});
        reduction(out.data(), scratch.data(), x, n, accumulate, stream);
        scratch.get();
        return out.get();
    }
};

}  // namespace

TEST_CASE("kernels/reduce: sums and sums of squares match the oracle, `=` and `+=`") {
    Reducer reduce;
    for (int64_t n : kSizes) {
        INFO("n = " << n);
        const auto x = random_values<float>(n, 1, 1.0, 0.1);
        Guarded<float> x_device(x, reduce.stream);
        Tracked sum;
        Tracked squares;
        for (float v : x) {
            sum += Tracked(v);
            squares += Tracked(v) * Tracked(v);
        }
        for (auto [reduction, expected] :
             {std::pair<Reduction, Tracked>{reduce_sum, sum}, {reduce_sum_squares, squares}}) {
            REQUIRE(compare(reduce(reduction, x_device.data(), n), std::vector{expected}, kRoundings));
            REQUIRE(compare(reduce(reduction, x_device.data(), n, -7.5f, true), std::vector{Tracked(-7.5) + expected},
                            kRoundings));
        }
    }
}

TEST_CASE("kernels/reduce: every element counts, at any alignment; an empty sum is 0; one NaN anywhere makes it NaN") {
    Reducer reduce;
    const int64_t n = 70001;
    std::vector<float> ones(n, 1.0f);
    Guarded<float> x(ones, reduce.stream);
    for (int64_t begin : {0, 1, 7, 16, 33})
        REQUIRE(reduce(reduce_sum, x.data() + begin, n - begin)[0] == static_cast<float>(n - begin));
    REQUIRE(reduce(reduce_sum, x.data(), 0)[0] == 0.0f);
    for (int64_t position : {0, 1, 40000, 70000}) {
        std::vector<float> spoiled = ones;
        spoiled[position] = NAN;
        x.set(spoiled);
        REQUIRE(std::isnan(reduce(reduce_sum_squares, x.data(), n)[0]));
    }
}

TEST_CASE("kernels/reduce: an array that needs more than 4096 blocks is summed in longer runs") {
    Reducer reduce;
    const int64_t run = (1 << 14) + 32;
    const int64_t n = 4096 * int64_t{1 << 14} + 77;
    std::vector<float> ends(n);  // the first and the last element of each run is 1
    for (int64_t begin = 0; begin < n; begin += run) ends[begin] = ends[std::min(n, begin + run) - 1] = 1.0f;
    Guarded<float> x(ends, reduce.stream);
    REQUIRE(reduce(reduce_sum, x.data(), n)[0] == static_cast<float>(2 * ((n + run - 1) / run)));
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

TEST_CASE("kernels/reduce: the same bits on any number of OS threads") {
    Reducer reduce;
    Guarded<float> x(random_values<float>(200003, 1), reduce.stream);
    REQUIRE(same_with_any_threads([&] {
        return bytes_of(reduce(reduce_sum, x.data(), x.size()), reduce(reduce_sum_squares, x.data(), x.size()));
    }));
}
