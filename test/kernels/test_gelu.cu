#include "kernels/gelu.h"
#include "test/kernels/activation_backward.h"
#include "test/optim/schedule.h"
#include "test/oracle/activation.h"
#include "test/oracle/differences.h"
#include "test/support/catch.h"
#include "test/support/compare.h"

using namespace teon;
using namespace teon::test;

// The kernels use one fast exponential (2 ulp on the host; on a GPU its error grows with the argument, as Tracked's
// does), a division and a few products: each counts once in Tracked's magnitude.
static constexpr double kRoundings = 4.0;

static const std::vector<int64_t> kSizes = {1, 31, 33, 97, 128, 257, 768, 4096, 100003};

TEST_CASE("kernels/gelu: the oracle's backward is the derivative of its forward") {
    const auto x = widen<double>(random_values<float>(50, 1, 2.0)), dout = widen<double>(random_values<float>(50, 2));
    auto loss = [&](const std::vector<double>& v) { return dot(test::gelu_forward(v), dout); };
    REQUIRE(gradient_error(loss, x, test::gelu_backward(x, dout)) < 1e-7);
}

TEMPLATE_TEST_CASE("kernels/gelu: forward matches the oracle", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (int64_t n : kSizes) {
        INFO("n = " << n);
        const auto x = random_values<T>(n, 1, 3.0);
        Guarded<T> x_device(x, stream), out(n, stream);
        teon::gelu_forward(out.data(), x_device.data(), n, stream);
        REQUIRE(compare(out.get(), test::gelu_forward(widen<Tracked>(x)), kRoundings));
        REQUIRE(same_bits(x_device.get(), x));
    }
}

TEMPLATE_TEST_CASE("kernels/gelu: the output may alias, and an address without alignment gives the same bits", "",
                   float, bf16) {
    using T = TestType;
    Stream stream;
    for (int64_t n : kSizes) {
        const auto x = random_values<T>(n, 3, 3.0);
        Guarded<T> x_device(x, stream), out(n, stream);
        teon::gelu_forward(out.data(), x_device.data(), n, stream);

        std::vector<T> shifted = x;
        shifted.insert(shifted.begin(), T(0.0f));
        Guarded<T> shifted_device(shifted, stream), out_shifted(n, stream);
        teon::gelu_forward(out_shifted.data(), shifted_device.data() + 1, n, stream);
        REQUIRE(same_bits(out_shifted.get(), out.get()));

        teon::gelu_forward(x_device.data(), x_device.data(), n, stream);
        REQUIRE(same_bits(x_device.get(), out.get()));
    }
}

TEMPLATE_TEST_CASE("kernels/gelu: large inputs saturate, NaN stays NaN", "", float, bf16) {
    using T = TestType;
    Stream stream;
    const std::vector<T> x = {T(-1e30f), T(-200.0f), T(200.0f), T(1e30f), T(0.0f), T(NAN)};
    Guarded<T> x_device(x, stream), out(6, stream), dx(6, stream), ones(std::vector<T>(6, T(1.0f)), stream);
    teon::gelu_forward(out.data(), x_device.data(), 6, stream);
    Guarded<std::byte> scratch(static_cast<int64_t>(gelu_backward_scratch_bytes(6, 1)), stream);
    teon::gelu_backward(dx.data(), nullptr, scratch.data(), x_device.data(), ones.data(), 6, 1, true, stream);
    const auto y = out.get(), d = dx.get();
    const float expected[5] = {0.0f, 0.0f, static_cast<float>(x[2]), static_cast<float>(x[3]), 0.0f};
    const float slopes[5] = {0.0f, 0.0f, 1.0f, 1.0f, 0.5f};
    for (int i = 0; i < 5; i++) {
        REQUIRE(static_cast<float>(y[i]) == expected[i]);
        REQUIRE(std::abs(static_cast<float>(d[i]) - slopes[i]) <= 1e-30f);  // the slope at -10 is -4e-36
    }
    REQUIRE(std::isnan(static_cast<float>(y[5])));
    REQUIRE(std::isnan(static_cast<float>(d[5])));
}

TEMPLATE_TEST_CASE("kernels/gelu: backward matches the oracle, also in place, and adds to the bias's gradient", "",
                   float, bf16) {
    check_activation_backward<TestType>(teon::gelu_backward<TestType>, gelu_backward_scratch_bytes,
                                        test::gelu_backward<Tracked>, kRoundings);
}

TEMPLATE_TEST_CASE("kernels/gelu: the same bits under every schedule", "", float, bf16) {
    using T = TestType;
    Stream stream;
    const int N = 257, C = 96, n = N * C;
    Guarded<T> x(random_values<T>(n, 5), stream), dout(random_values<T>(n, 6), stream), out(n, stream), dx(n, stream);
    Guarded<float> dbias(C, stream);
    Guarded<std::byte> scratch(static_cast<int64_t>(gelu_backward_scratch_bytes(N, C)), stream);
    REQUIRE(same_under_all_schedules([&] {
        dbias.set(std::vector<float>(C, 1.0f));
        teon::gelu_forward(out.data(), x.data(), n, stream);
        teon::gelu_backward(dx.data(), dbias.data(), scratch.data(), x.data(), dout.data(), N, C, true, stream);
        return bytes_of(out.get(), dx.get(), dbias.get());
    }));
}

// Values up to 20: an exponential, a division and the cubic, some float roundings each.
static constexpr double kTailRoundings = 8.0;

TEST_CASE("kernels/gelu: it and its derivative agree with the oracle from tail to tail") {
    Stream stream;
    std::vector<float> x;
    for (int i = -2000; i <= 2000; i++) x.push_back(static_cast<float>(i) / 100.0f);
    for (float large : {50.0f, 1e10f, 1e30f}) x.insert(x.end(), {large, -large});
    const int n = static_cast<int>(std::ssize(x));
    Guarded<float> X(x, stream), Ones(std::vector<float>(n, 1.0f), stream), Y(n, stream), Slope(n, stream);
    teon::gelu_forward(Y.data(), X.data(), n, stream);
    Guarded<std::byte> scratch(static_cast<int64_t>(gelu_backward_scratch_bytes(n, 1)), stream);
    teon::gelu_backward(Slope.data(), nullptr, scratch.data(), X.data(), Ones.data(), n, 1, true, stream);
    const auto y = Y.get(), slope = Slope.get();
    for (int i = 0; i < n; i++) {
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
