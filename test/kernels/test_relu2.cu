#include "kernels/relu2.h"
#include "test/kernels/activation_backward.h"
#include "test/optim/schedule.h"
#include "test/oracle/activation.h"
#include "test/oracle/differences.h"
#include "test/support/catch.h"
#include "test/support/compare.h"

using namespace teon;
using namespace teon::test;

// Two products at most, each counted once in Tracked's magnitude.
static constexpr double kRoundings = 2.0;

static const std::vector<int64_t> kSizes = {1, 31, 33, 97, 128, 257, 4096, 100003};

TEST_CASE("kernels/relu2: the oracle's backward is the derivative of its forward") {
    const auto x = widen<double>(random_values<float>(50, 1, 2.0)), dout = widen<double>(random_values<float>(50, 2));
    auto loss = [&](const std::vector<double>& v) { return dot(test::relu2_forward(v), dout); };
    REQUIRE(gradient_error(loss, x, test::relu2_backward(x, dout)) < 1e-7);
}

TEMPLATE_TEST_CASE("kernels/relu2: forward matches the oracle, in place and unaligned too", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (int64_t n : kSizes) {
        INFO("n = " << n);
        const auto x = random_values<T>(n, 1, 3.0);
        Guarded<T> x_device(x, stream), out(n, stream);
        teon::relu2_forward(out.data(), x_device.data(), n, stream);
        REQUIRE(compare(out.get(), test::relu2_forward(widen<Tracked>(x)), kRoundings));
        REQUIRE(same_bits(x_device.get(), x));

        std::vector<T> shifted = x;
        shifted.insert(shifted.begin(), T(0.0f));
        Guarded<T> shifted_device(shifted, stream), out_shifted(n, stream);
        teon::relu2_forward(out_shifted.data(), shifted_device.data() + 1, n, stream);
        REQUIRE(same_bits(out_shifted.get(), out.get()));

        teon::relu2_forward(x_device.data(), x_device.data(), n, stream);
        REQUIRE(same_bits(x_device.get(), out.get()));
    }
}

TEMPLATE_TEST_CASE("kernels/relu2: zero below zero, NaN stays NaN", "", float, bf16) {
    using T = TestType;
    Stream stream;
    const std::vector<T> x = {T(-1e30f), T(-0.0f), T(0.0f), T(3.0f), T(NAN)};
    Guarded<T> x_device(x, stream), out(5, stream), dx(5, stream), ones(std::vector<T>(5, T(1.0f)), stream);
    teon::relu2_forward(out.data(), x_device.data(), 5, stream);
    Guarded<std::byte> scratch(static_cast<int64_t>(relu2_backward_scratch_bytes(5, 1)), stream);
    teon::relu2_backward(dx.data(), nullptr, scratch.data(), x_device.data(), ones.data(), 5, 1, true, stream);
    const auto y = out.get(), d = dx.get();
    const float expected[4] = {0.0f, 0.0f, 0.0f, 9.0f}, slopes[4] = {0.0f, 0.0f, 0.0f, 6.0f};
    for (int i = 0; i < 4; i++) {
        REQUIRE(static_cast<float>(y[i]) == expected[i]);
        REQUIRE(static_cast<float>(d[i]) == slopes[i]);
    }
    REQUIRE(std::isnan(static_cast<float>(y[4])));
    REQUIRE(std::isnan(static_cast<float>(d[4])));
}

TEMPLATE_TEST_CASE("kernels/relu2: backward matches the oracle, also in place, and adds to the bias's gradient", "",
                   float, bf16) {
    check_activation_backward<TestType>(teon::relu2_backward<TestType>, relu2_backward_scratch_bytes,
                                        test::relu2_backward<Tracked>, kRoundings);
}

TEMPLATE_TEST_CASE("kernels/relu2: the same bits under every schedule", "", float, bf16) {
    using T = TestType;
    Stream stream;
    const int N = 257, C = 96, n = N * C;
    Guarded<T> x(random_values<T>(n, 5), stream), dout(random_values<T>(n, 6), stream), out(n, stream), dx(n, stream);
    Guarded<float> dbias(C, stream);
    Guarded<std::byte> scratch(static_cast<int64_t>(relu2_backward_scratch_bytes(N, C)), stream);
    REQUIRE(same_under_all_schedules([&] {
        dbias.set(std::vector<float>(C, 1.0f));
        teon::relu2_forward(out.data(), x.data(), n, stream);
        teon::relu2_backward(dx.data(), dbias.data(), scratch.data(), x.data(), dout.data(), N, C, true, stream);
        return bytes_of(out.get(), dx.get(), dbias.get());
    }));
}
