// All rows of kActivations. Each has an oracle in test/oracle/activation.h.
#include <cmath>

#include "kernels/activation.h"
#include "test/oracle/activation.h"
#include "test/oracle/differences.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

namespace {

// The tolerance of compare(), in roundings; Tracked's magnitude counts each once.
double roundings(ActivationKind kind) {
    switch (kind) {
        case ActivationKind::gelu:
        case ActivationKind::swiglu:
        case ActivationKind::geglu:
            // One fast exponential (2 ulp on the host; on a GPU its error grows with the argument, as Tracked's does),
            // a division and a few products.
            return 4;
        case ActivationKind::gelu_erf:
        case ActivationKind::geglu_erf:
            // The same and a polynomial of ten coefficients whose alternating terms are up to 3 times their sum.
            // Tracked counts erfc once.
            return 6;
        case ActivationKind::relu2:
            return 2;  // at most two products
        case ActivationKind::count:
            break;
    }
    return 0;
}

// One activation function's tensors on the device, for N rows of width F.
template <typename T>
struct Case {
    const ActivationFunction& row;
    int N, F;
    const Stream& stream;
    int64_t inputs = int64_t{N} * F * row.inputs();
    std::vector<T> x = random_values<T>(inputs, 1, 3.0);
    std::vector<T> dout = random_values<T>(int64_t{N} * F, 2);
    Guarded<T> x_device{x, stream};
    Guarded<T> dout_device{dout, stream};
    Guarded<T> out{int64_t{N} * F, stream};
    Guarded<T> dx{inputs, stream};
    Guarded<float> dbias{std::vector<float>(static_cast<size_t>(F)), stream};
    Guarded<std::byte> scratch{static_cast<int64_t>(activation_backward_scratch_bytes(row.kind, N, F)), stream};

    void forward(T* to, const T* from) { activation_forward(row.kind, to, from, N, F, stream); }
    void backward(T* to, bool bias, bool accumulate) {
        activation_backward(row.kind, to, bias ? dbias.data() : nullptr, scratch.data(), x_device.data(),
                            dout_device.data(), N, F, accumulate, stream);
    }
    // Returns the bias gradient that starts as `before`.
    std::vector<float> bias_gradient(float before, bool accumulate) {
        dbias.set(std::vector<float>(static_cast<size_t>(F), before));
        backward(dx.data(), true, accumulate);
        return dbias.get();
    }
};

struct Shape {
    int N, F;
};
// Odd sizes. 8205 and 8193 rows have chunks of more than 8 rows. On a CPU, a warp processes the rows of the last two,
// with vectors of one element and wider.
const std::vector<Shape> kShapes = {{1, 1},    {31, 33},  {33, 31},   {97, 97},  {5, 128},  {257, 96},
                                    {17, 768}, {1, 4096}, {8205, 17}, {8193, 8}, {3, 2049}, {2, 4160}};

}  // namespace

TEST_CASE("kernels/activation: the oracles' backward passes are the derivatives of their forward passes") {
    const int N = 3;
    const int F = 7;
    for (const ActivationFunction& row : kActivations) {
        INFO(row.name);
        const auto x = widen<double>(random_values<float>(N * F * row.inputs(), 1, 2.0));
        const auto dout = widen<double>(random_values<float>(N * F, 2));
        auto loss = [&](const std::vector<double>& v) { return dot(test::activation_forward(row, v, F), dout); };
        REQUIRE(gradient_error(loss, x, test::activation_backward(row, x, dout, F)) < 1e-7);
    }
}

TEMPLATE_TEST_CASE("kernels/activation: forward matches the oracle, also in place and unaligned", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (const ActivationFunction& row : kActivations)
        for (auto [N, F] : kShapes) {
            INFO(row.name << ", N = " << N << ", F = " << F);
            Case<T> c{row, N, F, stream};
            c.forward(c.out.data(), c.x_device.data());
            const auto expected = test::activation_forward(row, widen<Tracked>(c.x), F);
            REQUIRE(compare(c.out.get(), expected, roundings(row.kind)));
            REQUIRE(same_bits(c.x_device.get(), c.x));

            std::vector<T> shifted = c.x;
            shifted.insert(shifted.begin(), T(0.0f));
            Guarded<T> shifted_device(shifted, stream);
            Guarded<T> out_shifted(int64_t{N} * F, stream);
            c.forward(out_shifted.data(), shifted_device.data() + 1);
            REQUIRE(same_bits(out_shifted.get(), c.out.get()));
            if (row.gated) continue;
            c.forward(c.x_device.data(), c.x_device.data());
            REQUIRE(same_bits(c.x_device.get(), c.out.get()));
        }
}

TEMPLATE_TEST_CASE("kernels/activation: backward matches the oracle, also in place, and adds to the bias gradient", "",
                   float, bf16) {
    using T = TestType;
    Stream stream;
    for (const ActivationFunction& row : kActivations)
        for (auto [N, F] : kShapes) {
            INFO(row.name << ", N = " << N << ", F = " << F);
            Case<T> c{row, N, F, stream};
            const auto before = random_values<float>(F, 3);
            c.dbias.set(before);
            c.backward(c.dx.data(), !row.gated, true);
            const auto expected = test::activation_backward(row, widen<Tracked>(c.x), widen<Tracked>(c.dout), F);
            REQUIRE(compare(c.dx.get(), expected, roundings(row.kind)));
            REQUIRE(same_bits(c.x_device.get(), c.x));
            REQUIRE(same_bits(c.dout_device.get(), c.dout));
            c.scratch.get();  // checks the canaries
            if (row.gated) {  // in place of x
                c.backward(c.x_device.data(), false, true);
                REQUIRE(same_bits(c.x_device.get(), c.dx.get()));
                REQUIRE(same_bits(c.dout_device.get(), c.dout));
                continue;
            }
            auto sums = widen<Tracked>(before);
            for (size_t i = 0; i < expected.size(); ++i) sums[i % static_cast<size_t>(F)] += expected[i];
            REQUIRE(compare(c.dbias.get(), sums, roundings(row.kind)));
            // Overwriting NaN gives the same bias gradient as accumulating to zero.
            REQUIRE((c.bias_gradient(NAN, false) == c.bias_gradient(0.0f, true)));
            c.backward(c.dout_device.data(), false, true);  // in place of dout
            REQUIRE(same_bits(c.dout_device.get(), c.dx.get()));
        }
}

// The expected value and slope at x.
struct ActivationAt {
    float x, value, slope;
};

TEMPLATE_TEST_CASE("kernels/activation: large inputs saturate, NaN stays NaN", "", float, bf16) {
    using T = TestType;
    Stream stream;
    // The slope of GELU at -10 is -4e-36, and e^-200 is about 1e-87.
    const std::vector<ActivationAt> gelu = {
        {-1e30f, 0, 0}, {-200.0f, 0, 0}, {200.0f, 200.0f, 1}, {1e30f, 1e30f, 1}, {0.0f, 0, 0.5f}};
    const std::vector<ActivationAt> silu = {{-200.0f, 0, 0}, {200.0f, 200.0f, 1}, {0.0f, 0, 0.5f}};
    const std::vector<ActivationAt> relu2 = {{-1e30f, 0, 0}, {-0.0f, 0, 0}, {0.0f, 0, 0}, {3.0f, 9.0f, 6}};
    for (const ActivationFunction& row : kActivations) {
        INFO(row.name);
        std::vector<ActivationAt> expected = gelu;
        if (row.kind == ActivationKind::relu2) expected = relu2;
        if (row.kind == ActivationKind::swiglu) expected = silu;
        std::vector<T> x;
        for (const ActivationAt& e : expected) x.push_back(T(e.x));
        x.push_back(T(NAN));
        const int F = static_cast<int>(x.size());
        if (row.gated) x.insert(x.end(), static_cast<size_t>(F), T(2.0f));  // up
        const float up = row.gated ? 2.0f : 1.0f;
        Guarded<T> x_device(x, stream);
        Guarded<T> out(F, stream);
        Guarded<T> dx(int64_t{F} * row.inputs(), stream);
        Guarded<T> ones(std::vector<T>(static_cast<size_t>(F), T(1.0f)), stream);
        Guarded<std::byte> scratch(static_cast<int64_t>(activation_backward_scratch_bytes(row.kind, 1, F)), stream);
        teon::activation_forward(row.kind, out.data(), x_device.data(), 1, F, stream);
        teon::activation_backward<T>(row.kind, dx.data(), nullptr, scratch.data(), x_device.data(), ones.data(), 1, F,
                                     true, stream);
        const auto y = out.get();
        const auto slope = dx.get();
        for (size_t i = 0; i < expected.size(); ++i) {
            INFO("x = " << expected[i].x);
            const float value = static_cast<float>(T(expected[i].value));
            REQUIRE(std::abs(static_cast<float>(y[i]) - value * up) <= 1e-30f);
            REQUIRE(std::abs(static_cast<float>(slope[i]) - expected[i].slope * up) <= 1e-30f);
            if (row.gated) REQUIRE(std::abs(static_cast<float>(slope[static_cast<size_t>(F) + i]) - value) <= 1e-30f);
        }
        REQUIRE(std::isnan(static_cast<float>(y.back())));
        REQUIRE(std::isnan(static_cast<float>(slope[static_cast<size_t>(F) - 1])));
    }
}

TEMPLATE_TEST_CASE("kernels/activation: the same bits on any number of OS threads", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (const ActivationFunction& row : kActivations)
        for (auto [N, F] : {Shape{257, 96}, Shape{5, 2049}}) {
            INFO(row.name << ", N = " << N << ", F = " << F);
            Case<T> c{row, N, F, stream};
            REQUIRE(same_with_any_threads([&] {
                c.forward(c.out.data(), c.x_device.data());
                c.dbias.set(std::vector<float>(static_cast<size_t>(c.F), 1.0f));
                c.backward(c.dx.data(), !c.row.gated, true);
                return bytes_of(c.out.get(), c.dx.get(), c.dbias.get());
            }));
        }
}

TEST_CASE("kernels/activation: GELU and its derivative agree with the oracle from tail to tail") {
    const struct {
        ActivationKind kind;
        int limit;  // of |x|, in hundredths
        // The tanh form: the exponential, the division and the cubic have several float roundings each.
        double roundings;
        std::vector<float> beyond;
    } tails[] = {{ActivationKind::gelu, 2000, 8, {50.0f, 1e10f, 1e30f}},
                 {ActivationKind::gelu_erf, 1200, roundings(ActivationKind::gelu_erf), {}}};
    Stream stream;
    for (const auto& tail : tails) {
        const ActivationFunction& row = row_of(tail.kind);
        INFO(row.name);
        std::vector<float> x;
        for (int i = -tail.limit; i <= tail.limit; ++i) x.push_back(static_cast<float>(i) / 100.0f);
        for (float large : tail.beyond) x.insert(x.end(), {large, -large});
        const int n = static_cast<int>(std::ssize(x));
        Guarded<float> X(x, stream);
        Guarded<float> Ones(std::vector<float>(static_cast<size_t>(n), 1.0f), stream);
        Guarded<float> Y(n, stream);
        Guarded<float> Slope(n, stream);
        teon::activation_forward(row.kind, Y.data(), X.data(), n, 1, stream);
        Guarded<std::byte> scratch(static_cast<int64_t>(activation_backward_scratch_bytes(row.kind, n, 1)), stream);
        teon::activation_backward<float>(row.kind, Slope.data(), nullptr, scratch.data(), X.data(), Ones.data(), n, 1,
                                         true, stream);
        const auto y = Y.get();
        const auto slope = Slope.get();
        for (size_t i = 0; i < x.size(); ++i) {
            CAPTURE(x[i]);
            // 1e-6 is 8 roundoffs of a derivative near 1.
            if (100 * std::abs(x[i]) > static_cast<float>(tail.limit)) {
                REQUIRE(compare(std::vector{y[i]}, std::vector{std::max(0.0, static_cast<double>(x[i]))}, 1e-6));
                REQUIRE(compare(std::vector{slope[i]}, std::vector{x[i] > 0.0f ? 1.0 : 0.0}, 1e-6));
                continue;
            }
            const auto expected = test::activation_forward(row, std::vector{Tracked(x[i])}, 1);
            const auto derivative = test::activation_backward(row, std::vector{double(x[i])}, std::vector{1.0}, 1);
            REQUIRE(compare(std::vector{y[i]}, expected, tail.roundings));
            REQUIRE(compare(std::vector{slope[i]}, derivative, 1e-6));
        }
    }
}
