#include "kernels/swiglu.h"
#include "test/oracle/activation.h"
#include "test/oracle/differences.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

// One fast exponential, a division and a few products. Tracked's magnitude counts each once.
static constexpr double kRoundings = 4.0;

namespace {
struct Shape {
    int N, F;
};
}  // namespace
// On a CPU, a warp processes the rows of the last two, with vectors of one element and wider.
static const std::vector<Shape> kShapes = {{1, 1},   {31, 33},  {33, 31},  {97, 97},  {5, 128},
                                           {3, 257}, {128, 64}, {257, 96}, {3, 2049}, {2, 4160}};

TEST_CASE("kernels/swiglu: the oracle's backward is the derivative of its forward") {
    const int N = 3;
    const int F = 7;
    const auto x = widen<double>(random_values<float>(N * 2 * F, 1, 2.0));
    const auto dout = widen<double>(random_values<float>(N * F, 2));
    auto loss = [&](const std::vector<double>& v) { return dot(test::swiglu_forward(v, N, F), dout); };
    REQUIRE(gradient_error(loss, x, test::swiglu_backward(x, dout, N, F)) < 1e-7);
}

TEMPLATE_TEST_CASE("kernels/swiglu: forward and backward match the oracle", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, F] : kShapes) {
        INFO("N = " << N << ", F = " << F);
        const int64_t n = int64_t{N} * F;
        const auto x = random_values<T>(2 * n, 1, 3.0);
        const auto dout = random_values<T>(n, 2);
        Guarded<T> x_device(x, stream);
        Guarded<T> dout_device(dout, stream);
        Guarded<T> out(n, stream);
        Guarded<T> dx(2 * n, stream);
        teon::swiglu_forward(out.data(), x_device.data(), N, F, stream);
        teon::swiglu_backward(dx.data(), x_device.data(), dout_device.data(), N, F, stream);
        const auto expected = test::swiglu_backward(widen<Tracked>(x), widen<Tracked>(dout), N, F);
        REQUIRE(compare(out.get(), test::swiglu_forward(widen<Tracked>(x), N, F), kRoundings));
        REQUIRE(compare(dx.get(), expected, kRoundings));
        REQUIRE(same_bits(x_device.get(), x));
        // In place.
        teon::swiglu_backward(x_device.data(), x_device.data(), dout_device.data(), N, F, stream);
        REQUIRE(same_bits(x_device.get(), dx.get()));
        REQUIRE(same_bits(dout_device.get(), dout));
    }
}

TEMPLATE_TEST_CASE("kernels/swiglu: large gates saturate", "", float, bf16) {
    using T = TestType;
    Stream stream;
    const std::vector<T> gate_up = {T(-256.0f), T(256.0f), T(0.0f), T(2.0f), T(3.0f), T(4.0f)};
    Guarded<T> x(gate_up, stream);
    Guarded<T> out(3, stream);
    Guarded<T> dx(6, stream);
    Guarded<T> ones(std::vector<T>(3, T(1.0f)), stream);
    teon::swiglu_forward(out.data(), x.data(), 1, 3, stream);
    teon::swiglu_backward(dx.data(), x.data(), ones.data(), 1, 3, stream);
    const double tiny = 1e-30;  // e^-256 is about 1e-111
    REQUIRE(compare(out.get(), std::vector<double>{0.0, 768.0, 0.0}, tiny));
    REQUIRE(compare(dx.get(), std::vector<double>{0.0, 3.0, 2.0, 0.0, 256.0, 0.0}, tiny));
}

TEMPLATE_TEST_CASE("kernels/swiglu: the same bits on any number of OS threads", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, F] : {Shape{97, 96}, Shape{5, 2049}}) {
        const int64_t n = int64_t{N} * F;
        Guarded<T> x(random_values<T>(2 * n, 5), stream);
        Guarded<T> dout(random_values<T>(n, 6), stream);
        Guarded<T> out(n, stream);
        Guarded<T> dx(2 * n, stream);
        REQUIRE(same_with_any_threads([&, N = N, F = F] {
            teon::swiglu_forward(out.data(), x.data(), N, F, stream);
            teon::swiglu_backward(dx.data(), x.data(), dout.data(), N, F, stream);
            return bytes_of(out.get(), dx.get());
        }));
    }
}
