#include "base/integer.h"
#include "kernels/classifier.h"

#include <limits>

#include "runtime/simt.h"
#include "test/oracle/classifier.h"
#include "test/oracle/differences.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
struct Result {
    std::vector<float> losses;
    std::vector<T> logits;
};

template <typename T>
Result<T> run(const std::vector<T>& logits, const std::vector<int>& targets, int V, int Vp, float grad_scale = 1.0f,
              bool with_gradient = true) {
    Stream stream;
    const int N = static_cast<int>(targets.size());
    Guarded<T> x(logits, stream);
    Guarded<int> y(targets, stream);
    Guarded<float> losses(N, stream);
    classifier(x.data(), losses.data(), y.data(), N, V, Vp, grad_scale, with_gradient, stream);
    return {losses.get(), x.get()};
}

template <typename T>
std::vector<T> row_of(const std::vector<T>& x, int row, int width) {
    return {x.begin() + int64_t{row} * width, x.begin() + int64_t{row + 1} * width};
}

// Rounding errors per term, in float: two exponentials of up to 2 ulp, corrections as the maximum changes, and the sum.
// exp_fast alone has 4.
constexpr double kRoundings = 8;

template <typename T>
void agrees_with_oracle(int N, int V, int Vp, double std, uint64_t seed, double mean = 0.0) {
    INFO(fmt::format("{} N={} V={} Vp={} std={} mean={}", name_of(dtype_of<T>), N, V, Vp, std, mean));
    const float grad_scale = 0.25f;
    std::vector<T> logits = random_values<T>(int64_t{N} * Vp, seed, std, mean);
    for (int n = 0; n < N; ++n)
        for (int j = V; j < Vp; ++j) logits[int64_t{n} * Vp + j] = T(j % 2 ? kNaN : kInfinity);
    std::vector<int> targets = random_ints(N, seed + 1, V);
    targets[0] = V - 1;
    if (N > 2) {
        targets[1] = 0;
        targets[2] = -1;
    }

    Result<T> actual = run(logits, targets, V, Vp, grad_scale);
    ClassifierOracle<Tracked> expected =
        classifier_oracle(widen<Tracked>(logits), targets, N, V, Vp, static_cast<double>(grad_scale));
    REQUIRE(compare(actual.losses, expected.losses, kRoundings));
    REQUIRE(compare(actual.logits, expected.dlogits, kRoundings));
}

template <typename T>
void ignores_negative_targets() {
    const int V = 257;
    const int Vp = 320;
    std::vector<T> logits(2 * Vp, T(kNaN));
    Result<T> r = run(logits, {-1, -100}, V, Vp);
    REQUIRE(r.losses == std::vector<float>{0.0f, 0.0f});
    REQUIRE(same_bits(r.logits, std::vector<T>(2 * Vp, T(0.0f))));
}

}  // namespace

TEST_CASE("kernels/classifier: the oracle's gradient matches central differences of its loss") {
    const int N = 3;
    const int V = 7;
    const int Vp = 9;
    const double scale = 0.5;
    const std::vector<int> targets{6, -1, 2};
    const auto total = [&](const std::vector<double>& x) {
        double sum = 0;
        for (double loss : classifier_oracle(x, targets, N, V, Vp, scale).losses) sum += scale * loss;
        return sum;
    };
    const std::vector<double> logits = random_values<double>(N * Vp, 1);
    REQUIRE(gradient_error(total, logits, classifier_oracle(logits, targets, N, V, Vp, scale).dlogits) < 1e-9);
}

TEST_CASE("kernels/classifier: loss and gradient agree with the oracle, and padding does not affect them") {
    uint64_t seed = 10;
    // A row of 12288 floats or 24576 bf16 takes 48 KiB, the most shared memory of a block that does not opt in to more.
    for (int V : {1, 2, 31, 33, 64, 257, 1000, 2048, 2049, 4099, 12288, 24500, 50257, 128256})
        for (int Vp : {V, V + 1, round_up(V, 128)}) {
            const int N = V > 10000 ? 3 : 33;
            agrees_with_oracle<float>(N, V, Vp, 2.0, seed);
            agrees_with_oracle<bf16>(N, V, Vp, 2.0, seed + 1);
            seed += 2;
        }
}

TEST_CASE("kernels/classifier: logits far beyond the range of exp agree with the oracle") {
    for (int V : {33, 257, 3000}) {
        agrees_with_oracle<float>(5, V, V + 63, 1e4, 77);
        agrees_with_oracle<bf16>(5, V, V + 63, 1e4, 78);
    }
}

// With so few columns, some parts of a row's sum have no columns, or only columns of -infinity.
TEST_CASE("kernels/classifier: all logits of a row may be far below zero") {
    for (int V : {1, 2, 15, 33, 100, 257}) {
        agrees_with_oracle<float>(5, V, round_up(V, 64), 2.0, 79, -200.0);
        agrees_with_oracle<bf16>(5, V, round_up(V, 64), 2.0, 80, -200.0);
        std::vector<float> logits(V, -kInfinity);
        logits[V / 2] = -200.0f;
        const Result<float> r = run(logits, {V / 2}, V, V);
        REQUIRE(r.losses[0] == 0.0f);
        REQUIRE(same_bits(r.logits, std::vector<float>(V, 0.0f)));
    }
}

TEST_CASE("kernels/classifier: a negative target has zero loss and gradient, whatever the logits") {
    ignores_negative_targets<float>();
    ignores_negative_targets<bf16>();
}

TEST_CASE("kernels/classifier: a target outside the vocabulary gives NaN, in its row only") {
    for (int V : {257, 3001}) {
        const int Vp = V + 63;
        const std::vector<float> logits = random_values<float>(3 * Vp, 5);
        const Result<float> good = run(logits, {1, 2, 3}, V, Vp);
        for (int target : {V, Vp, 1 << 30}) {
            Result<float> r = run(logits, {1, target, 3}, V, Vp);
            REQUIRE(std::isnan(r.losses[1]));
            for (int j = 0; j < V; ++j) REQUIRE(std::isnan(r.logits[Vp + j]));
            for (int j = V; j < Vp; ++j) REQUIRE(r.logits[Vp + j] == 0.0f);
            for (int row : {0, 2}) {
                REQUIRE(r.losses[row] == good.losses[row]);
                REQUIRE(same_bits(row_of(r.logits, row, Vp), row_of(good.logits, row, Vp)));
            }
        }
    }
}

TEST_CASE("kernels/classifier: NaN and +infinity among the logits give a NaN loss, -infinity a probability of zero") {
    for (int V : {257, 3001}) {
        const int Vp = V + 15;
        const std::vector<float> finite = random_values<float>(Vp, 6);
        for (int place : {0, 1, 40, 256, V - 1}) {
            for (float bad : {kNaN, kInfinity}) {
                std::vector<float> logits = finite;
                logits[place] = bad;
                REQUIRE(std::isnan(run(logits, {2}, V, Vp).losses[0]));
            }
            std::vector<float> logits = finite;
            logits[place] = -kInfinity;
            Result<float> r = run(logits, {2}, V, Vp);
            logits[place] = -1e30f;
            Result<float> expected = run(logits, {2}, V, Vp);
            REQUIRE(std::isfinite(r.losses[0]));
            REQUIRE(same_bits(r.losses, expected.losses));
            REQUIRE(same_bits(r.logits, expected.logits));
        }
        REQUIRE(std::isnan(run(std::vector<float>(Vp, -kInfinity), {2}, V, Vp).losses[0]));
    }
}

TEST_CASE("kernels/classifier: without a gradient, logits are unchanged and losses have the same bits") {
    for (int V : {257, 3001}) {
        const std::vector<bf16> logits = random_values<bf16>(5 * V, 7);
        const std::vector<int> targets{0, -1, 5, V - 1, 17};
        Result<bf16> with = run(logits, targets, V, V);
        Result<bf16> without = run(logits, targets, V, V, 1.0f, false);
        REQUIRE(same_bits(without.losses, with.losses));
        REQUIRE(same_bits(without.logits, logits));
    }
}

TEST_CASE("kernels/classifier: the same bits on any number of OS threads") {
    for (int V : {257, 4099}) {
        const int N = 37;
        const int Vp = V + 61;
        const std::vector<float> logits = random_values<float>(int64_t{N} * Vp, 8);
        const std::vector<int> targets = random_ints(N, 9, V);
        auto bytes = [&] {
            const Result<float> r = run(logits, targets, V, Vp);
            return bytes_of(r.losses, r.logits);
        };
        REQUIRE(same_with_any_threads(bytes, {1, 2, 5}));
    }
}

TEST_CASE("kernels/classifier: impossible shapes are refused") {
    Stream stream;
    REQUIRE_THROWS_AS(classifier<float>(nullptr, nullptr, nullptr, 1, 5, 4, 1.0f, true, stream), Error);
    REQUIRE_THROWS_AS(classifier<float>(nullptr, nullptr, nullptr, 0, 5, 5, 1.0f, true, stream), Error);
}
