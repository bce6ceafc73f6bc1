#include "kernels/gelu.h"
#include "test/kernels/activation_cases.h"
#include "test/oracle/activation.h"

using namespace teon;
using namespace teon::test;

// The kernels use one fast exponential (2 ulp on the host; on a GPU its error grows with the argument, as Tracked's
// does), a division and a few products. Tracked's magnitude counts each once.
static constexpr double kRoundings = 4.0;

static const auto kForward = [](auto&&... a) { teon::gelu_forward(a...); };
static const auto kBackward = [](auto&&... a) { teon::gelu_backward(a...); };
static const auto kOracle = [](const auto& x) { return test::gelu_forward(x); };
static const auto kOracleBackward = [](const auto& x, const auto& dout) { return test::gelu_backward(x, dout); };

TEST_CASE("kernels/gelu: the oracle's backward is the derivative of its forward") {
    check_activation_oracle(kOracle, kOracleBackward);
}

TEMPLATE_TEST_CASE("kernels/gelu: forward matches the oracle, also in place and unaligned", "", float, bf16) {
    check_activation_forward<TestType>(kForward, kOracle, kRoundings);
}

TEMPLATE_TEST_CASE("kernels/gelu: large inputs saturate, NaN stays NaN", "", float, bf16) {
    // The slope at -10 is -4e-36.
    check_activation_at<TestType>(
        kForward, kBackward, gelu_backward_scratch_bytes,
        {{-1e30f, 0, 0}, {-200.0f, 0, 0}, {200.0f, 200.0f, 1}, {1e30f, 1e30f, 1}, {0.0f, 0, 0.5f}}, 1e-30f);
}

TEMPLATE_TEST_CASE("kernels/gelu: backward matches the oracle, also in place, and adds to the bias gradient", "", float,
                   bf16) {
    check_activation_backward<TestType>(kBackward, gelu_backward_scratch_bytes, kOracleBackward, kRoundings);
}

TEMPLATE_TEST_CASE("kernels/gelu: the same bits on any number of OS threads", "", float, bf16) {
    check_activation_schedules<TestType>(kForward, kBackward, gelu_backward_scratch_bytes);
}

// For |x| up to 20. The exponential, the division and the cubic have several float roundings each.
static constexpr double kTailRoundings = 8.0;

TEST_CASE("kernels/gelu: gelu and its derivative agree with the oracle from tail to tail") {
    Stream stream;
    std::vector<float> x;
    for (int i = -2000; i <= 2000; ++i) x.push_back(static_cast<float>(i) / 100.0f);
    for (float large : {50.0f, 1e10f, 1e30f}) x.insert(x.end(), {large, -large});
    const int n = static_cast<int>(std::ssize(x));
    Guarded<float> X(x, stream);
    Guarded<float> Ones(std::vector<float>(n, 1.0f), stream);
    Guarded<float> Y(n, stream);
    Guarded<float> Slope(n, stream);
    teon::gelu_forward(Y.data(), X.data(), n, stream);
    Guarded<std::byte> scratch(static_cast<int64_t>(gelu_backward_scratch_bytes(n, 1)), stream);
    teon::gelu_backward(Slope.data(), nullptr, scratch.data(), X.data(), Ones.data(), n, 1, true, stream);
    const auto y = Y.get();
    const auto slope = Slope.get();
    for (int i = 0; i < n; ++i) {
        CAPTURE(x[i]);
        if (std::abs(x[i]) > 20.0f) {
            REQUIRE(compare(std::vector{y[i]}, std::vector{std::max(0.0, static_cast<double>(x[i]))}, 1e-6));
            REQUIRE(compare(std::vector{slope[i]}, std::vector{x[i] > 0.0f ? 1.0 : 0.0}, 1e-6));
            continue;
        }
        REQUIRE(compare(std::vector{y[i]}, test::gelu_forward(std::vector{Tracked(x[i])}), kTailRoundings));
        // 1e-6 is 8 roundoffs of a derivative near 1.
        const std::vector<double> expected = test::gelu_backward(std::vector{double(x[i])}, std::vector{1.0});
        REQUIRE(compare(std::vector{slope[i]}, expected, 1e-6));
    }
}
