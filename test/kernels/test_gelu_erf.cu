#include "kernels/gelu.h"
#include "test/kernels/activation_cases.h"
#include "test/oracle/activation.h"

using namespace teon;
using namespace teon::test;

// One fast exponential (2 ulp on the host; on a GPU its error grows with the argument, as Tracked's does), a division
// and a polynomial of ten coefficients whose alternating terms are up to 3 times their sum. Tracked counts erfc once.
static constexpr double kRoundings = 6.0;

static const auto kForward = [](auto&&... a) { teon::gelu_erf_forward(a...); };
static const auto kBackward = [](auto&&... a) { teon::gelu_erf_backward(a...); };
static const auto kOracle = [](const auto& x) { return test::gelu_erf_forward(x); };
static const auto kOracleBackward = [](const auto& x, const auto& dout) { return test::gelu_erf_backward(x, dout); };

TEST_CASE("kernels/gelu_erf: the oracle's backward is the derivative of its forward") {
    check_activation_oracle(kOracle, kOracleBackward);
}

TEMPLATE_TEST_CASE("kernels/gelu_erf: forward matches the oracle, also in place and unaligned", "", float, bf16) {
    check_activation_forward<TestType>(kForward, kOracle, kRoundings);
}

TEMPLATE_TEST_CASE("kernels/gelu_erf: large inputs saturate, NaN stays NaN", "", float, bf16) {
    check_activation_at<TestType>(
        kForward, kBackward, gelu_erf_backward_scratch_bytes,
        {{-1e30f, 0, 0}, {-200.0f, 0, 0}, {200.0f, 200.0f, 1}, {1e30f, 1e30f, 1}, {0.0f, 0, 0.5f}}, 1e-30f);
}

TEMPLATE_TEST_CASE("kernels/gelu_erf: backward matches the oracle, also in place, and adds to the bias gradient", "",
                   float, bf16) {
    check_activation_backward<TestType>(kBackward, gelu_erf_backward_scratch_bytes, kOracleBackward, kRoundings);
}

TEMPLATE_TEST_CASE("kernels/gelu_erf: the same bits on any number of OS threads", "", float, bf16) {
    check_activation_schedules<TestType>(kForward, kBackward, gelu_erf_backward_scratch_bytes);
}

TEST_CASE("kernels/gelu_erf: the function and its derivative agree with the oracle from tail to tail") {
    Stream stream;
    std::vector<float> x;
    for (int i = -1200; i <= 1200; ++i) x.push_back(static_cast<float>(i) / 100.0f);
    const int n = static_cast<int>(std::ssize(x));
    Guarded<float> X(x, stream);
    Guarded<float> Ones(std::vector<float>(n, 1.0f), stream);
    Guarded<float> Y(n, stream);
    Guarded<float> Slope(n, stream);
    teon::gelu_erf_forward(Y.data(), X.data(), n, stream);
    Guarded<std::byte> scratch(static_cast<int64_t>(gelu_erf_backward_scratch_bytes(n, 1)), stream);
    teon::gelu_erf_backward(Slope.data(), nullptr, scratch.data(), X.data(), Ones.data(), n, 1, true, stream);
    REQUIRE(compare(Y.get(), test::gelu_erf_forward(widen<Tracked>(x)), kRoundings));
    // 1e-6 is 8 roundoffs of a derivative near 1.
    const std::vector<double> ones(x.size(), 1.0);
    REQUIRE(compare(Slope.get(), test::gelu_erf_backward(widen<double>(x), ones), 1e-6));
}
