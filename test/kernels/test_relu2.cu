#include "kernels/relu2.h"
#include "test/kernels/activation_cases.h"
#include "test/oracle/activation.h"

using namespace teon;
using namespace teon::test;

// At most two products. Tracked's magnitude counts each once.
static constexpr double kRoundings = 2.0;

static const auto kForward = [](auto&&... a) { teon::relu2_forward(a...); };
static const auto kBackward = [](auto&&... a) { teon::relu2_backward(a...); };
static const auto kOracle = [](const auto& x) { return test::relu2_forward(x); };
static const auto kOracleBackward = [](const auto& x, const auto& dout) { return test::relu2_backward(x, dout); };

TEST_CASE("kernels/relu2: the oracle's backward is the derivative of its forward") {
    check_activation_oracle(kOracle, kOracleBackward);
}

TEMPLATE_TEST_CASE("kernels/relu2: forward matches the oracle, also in place and unaligned", "", float, bf16) {
    check_activation_forward<TestType>(kForward, kOracle, kRoundings);
}

TEMPLATE_TEST_CASE("kernels/relu2: zero below zero, NaN stays NaN", "", float, bf16) {
    check_activation_at<TestType>(kForward, kBackward, relu2_backward_scratch_bytes,
                                  {{-1e30f, 0, 0}, {-0.0f, 0, 0}, {0.0f, 0, 0}, {3.0f, 9.0f, 6}}, 0);
}

TEMPLATE_TEST_CASE("kernels/relu2: backward matches the oracle, also in place, and adds to the bias gradient", "",
                   float, bf16) {
    check_activation_backward<TestType>(kBackward, relu2_backward_scratch_bytes, kOracleBackward, kRoundings);
}

TEMPLATE_TEST_CASE("kernels/relu2: the same bits on any number of OS threads", "", float, bf16) {
    check_activation_schedules<TestType>(kForward, kBackward, relu2_backward_scratch_bytes);
}
