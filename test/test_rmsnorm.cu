#include "kernels/ops.h"
#include "test/catch.h"
#include "test/compare.h"
#include "test/oracle/differences.h"
#include "test/oracle/norm.h"
#include "test/schedule.h"

using namespace teon;
using namespace teon::test;

// A row is scaled and multiplied: three roundings after the sums, each counted once in Tracked's magnitude, and
// sums of n terms taken in parts, whose error stays below a few roundings of the terms.
static constexpr double kRoundings = 6.0;
static constexpr float kEps = 1e-5f;

namespace {
struct Shape {
    int N, C;
};
}  // namespace
// On the host rows up to 2048 are one thread's; the widths beyond are a warp's, at width 1, held in registers by each
// number of vectors, and read again. The last one has more than one row per chunk and per thread to spare.
static const std::vector<Shape> kShapes = {{1, 1},    {31, 33},  {33, 31},  {97, 97},  {5, 128},
                                           {128, 64}, {3, 257},  {257, 96}, {31, 768}, {3, 2049},
                                           {2, 2304}, {2, 4160}, {2, 8256}, {8205, 17}};

TEST_CASE("kernels/rmsnorm: the oracle's backward is the derivative of its forward") {
    const int N = 3, C = 7;
    const auto x = widen<double>(random_values<float>(N * C, 1)), dout = widen<double>(random_values<float>(N * C, 2));
    const auto weight = widen<double>(random_values<float>(C, 3));
    const auto gradients = norm_backward(dout, x, weight, N, C, kEps, false);
    auto loss = [&](const auto& x, const auto& weight) {
        return dot(norm_forward(x, weight, {}, N, C, kEps, false).out, dout);
    };
    REQUIRE(gradient_error([&](const auto& v) { return loss(v, weight); }, x, gradients.dx) < 1e-7);
    REQUIRE(gradient_error([&](const auto& v) { return loss(x, v); }, weight, gradients.dweight) < 1e-7);
}

namespace {
// Inputs of one layer, on both sides.
template <typename T>
struct Layer {
    int N, C;
    std::vector<T> x, branch, weight, dout, dresidual;
    Guarded<T> x_device, branch_device, weight_device, dout_device, dresidual_device;
    Layer(int N, int C, const Stream& stream)
        : N(N),
          C(C),
          x(random_values<T>(int64_t{N} * C, 1, 1.0, 0.5)),
          branch(random_values<T>(int64_t{N} * C, 2)),
          weight(random_values<T>(C, 3, 0.5, 1.0)),
          dout(random_values<T>(int64_t{N} * C, 5)),
          dresidual(random_values<T>(int64_t{N} * C, 6)),
          x_device(x, stream),
          branch_device(branch, stream),
          weight_device(weight, stream),
          dout_device(dout, stream),
          dresidual_device(dresidual, stream) {}
    int64_t size() const { return int64_t{N} * C; }
    // x + branch as it is stored.
    std::vector<T> sum() const {
        std::vector<T> r = x;
        for (size_t i = 0; i < r.size(); i++) r[i] = T(static_cast<float>(x[i]) + static_cast<float>(branch[i]));
        return r;
    }
};
}  // namespace

TEMPLATE_TEST_CASE("kernels/rmsnorm: forward matches the oracle", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, C] : kShapes) {
        INFO("N = " << N << ", C = " << C);
        Layer<T> layer(N, C, stream);
        Guarded<T> out(layer.size(), stream);
        Guarded<float> rstd(N, stream);
        T* none = nullptr;
        rmsnorm_forward(out.data(), none, rstd.data(), layer.x_device.data(), none, layer.weight_device.data(), N, C,
                        kEps, stream);
        const auto expected =
            norm_forward(widen<Tracked>(layer.x), widen<Tracked>(layer.weight), {}, N, C, kEps, false);
        REQUIRE(compare(out.get(), expected.out, kRoundings));
        REQUIRE(compare(rstd.get(), expected.rstd, kRoundings));
        REQUIRE(same_bits(layer.x_device.get(), layer.x));
    }
}

TEMPLATE_TEST_CASE("kernels/rmsnorm: the fused addition equals adding first, bit for bit, also in place", "", float,
                   bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, C] : kShapes) {
        INFO("N = " << N << ", C = " << C);
        Layer<T> layer(N, C, stream);
        Guarded<T> out(layer.size(), stream), residual(layer.size(), stream), sum(layer.sum(), stream);
        Guarded<float> rstd(N, stream);
        auto forward = [&](T* residual, const T* x, const T* branch) {
            rmsnorm_forward(out.data(), residual, rstd.data(), x, branch, layer.weight_device.data(), N, C, kEps,
                            stream);
            return bytes_of(out.get(), rstd.get());
        };
        const std::string expected = forward(nullptr, sum.data(), nullptr);
        REQUIRE((forward(residual.data(), layer.x_device.data(), layer.branch_device.data()) == expected));
        REQUIRE(same_bits(residual.get(), layer.sum()));
        REQUIRE((forward(layer.x_device.data(), layer.x_device.data(), layer.branch_device.data()) == expected));
        REQUIRE(same_bits(layer.x_device.get(), layer.sum()));
        layer.x_device.set(layer.x);
        REQUIRE((forward(layer.branch_device.data(), layer.x_device.data(), layer.branch_device.data()) == expected));
        REQUIRE(same_bits(layer.branch_device.get(), layer.sum()));
        REQUIRE(same_bits(layer.x_device.get(), layer.x));
    }
}

TEMPLATE_TEST_CASE("kernels/rmsnorm: backward matches the oracle and adds to dweight", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, C] : kShapes) {
        INFO("N = " << N << ", C = " << C);
        Layer<T> layer(N, C, stream);
        Guarded<T> out(layer.size(), stream), dx(layer.size(), stream);
        Guarded<float> rstd(N, stream);
        const auto dweight_before = random_values<float>(C, 7);
        Guarded<float> dweight(dweight_before, stream);
        Guarded<std::byte> scratch(static_cast<int64_t>(rmsnorm_backward_scratch_bytes(N, C)), stream);
        T* none = nullptr;
        rmsnorm_forward(out.data(), none, rstd.data(), layer.x_device.data(), none, layer.weight_device.data(), N, C,
                        kEps, stream);
        auto backward = [&](T* dx, const T* dresidual) {
            dweight.set(dweight_before);
            rmsnorm_backward(dx, dweight.data(), scratch.data(), layer.dout_device.data(), dresidual,
                             layer.x_device.data(), rstd.data(), layer.weight_device.data(), N, C, stream);
            scratch.get();  // its canaries
            return bytes_of(dweight.get());
        };

        auto expected = norm_backward(widen<Tracked>(layer.dout), widen<Tracked>(layer.x), widen<Tracked>(layer.weight),
                                      N, C, kEps, false);
        backward(dx.data(), nullptr);
        REQUIRE(compare(dx.get(), expected.dx, kRoundings));
        for (int j = 0; j < C; j++) expected.dweight[j] += Tracked(dweight_before[j]);
        const std::string parameter_gradients = backward(dx.data(), layer.dresidual_device.data());
        for (size_t i = 0; i < expected.dx.size(); i++)
            expected.dx[i] += Tracked(static_cast<double>(static_cast<float>(layer.dresidual[i])));
        const auto dx_apart = dx.get();
        REQUIRE(compare(dx_apart, expected.dx, kRoundings));
        REQUIRE(compare(dweight.get(), expected.dweight, kRoundings));

        REQUIRE((backward(layer.dresidual_device.data(), layer.dresidual_device.data()) == parameter_gradients));
        REQUIRE(same_bits(layer.dresidual_device.get(), dx_apart));
        layer.dresidual_device.set(layer.dresidual);
        REQUIRE((backward(layer.dout_device.data(), layer.dresidual_device.data()) == parameter_gradients));
        REQUIRE(same_bits(layer.dout_device.get(), dx_apart));
        REQUIRE(same_bits(layer.x_device.get(), layer.x));
    }
}

TEMPLATE_TEST_CASE("kernels/rmsnorm: the same bits under every schedule", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, C] : {Shape{257, 96}, Shape{3, 2049}, Shape{5, 2304}}) {
        Layer<T> layer(N, C, stream);
        Guarded<T> out(layer.size(), stream), residual(layer.size(), stream), dx(layer.size(), stream);
        Guarded<float> rstd(N, stream), dweight(C, stream);
        Guarded<std::byte> scratch(static_cast<int64_t>(rmsnorm_backward_scratch_bytes(N, C)), stream);
        REQUIRE(same_under_all_schedules([&, N = N, C = C] {
            zero(dweight.data(), C, stream);
            rmsnorm_forward(out.data(), residual.data(), rstd.data(), layer.x_device.data(), layer.branch_device.data(),
                            layer.weight_device.data(), N, C, kEps, stream);
            rmsnorm_backward(dx.data(), dweight.data(), scratch.data(), layer.dout_device.data(),
                             layer.dresidual_device.data(), residual.data(), rstd.data(), layer.weight_device.data(), N,
                             C, stream);
            return bytes_of(out.get(), residual.get(), rstd.get(), dx.get(), dweight.get());
        }));
    }
}
