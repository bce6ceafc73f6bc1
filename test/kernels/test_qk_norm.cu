#include "kernels/qk_norm.h"
#include "test/oracle/differences.h"
#include "test/oracle/qk_norm.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

// As for rmsnorm (test_norm.cu): a few roundings after sums that are computed in parts.
static constexpr double kRoundings = 6.0;
static constexpr float kEps = 1e-6f;

namespace {
struct Shape {
    int N;
    QkVectors v;
    int64_t size() const { return int64_t{N} * v.row_width(); }
};
}  // namespace
// First, heads that are normalized separately: widths of 1, odd widths, and widths of one or several vectors; 8205
// rows, which form chunks of more than 32 rows; and 2304 elements, which a warp processes on a CPU. From
// {33, {1, 1, 48, 48}} on, all heads together: keys as wide as queries, narrower, of odd width and unaligned; chunks of
// more than 32 rows; and widths that a warp holds in registers or does not hold.
static const std::vector<Shape> kShapes = {
    {1, {1, 1, 1, 1}},    {31, {3, 1, 6, 6}},  {33, {4, 2, 10, 10}},  {97, {2, 2, 32, 32}},    {65, {16, 8, 128, 128}},
    {5, {4, 4, 64, 64}},  {3, {3, 3, 33, 33}}, {8205, {2, 1, 4, 4}},  {2, {2, 1, 2304, 2304}}, {33, {1, 1, 48, 48}},
    {31, {1, 1, 40, 10}}, {7, {1, 1, 33, 11}}, {8205, {1, 1, 16, 8}}, {3, {1, 1, 1024, 256}},  {2, {1, 1, 4608, 2304}}};

TEST_CASE("kernels/qk_norm: the oracle's backward is the derivative of its forward") {
    for (const Shape& s : {Shape{3, {2, 1, 5, 5}}, Shape{3, {1, 1, 6, 3}}}) {
        const auto x = widen<double>(random_values<float>(s.size(), 1));
        const auto dout = widen<double>(random_values<float>(s.size(), 2));
        const auto wq = widen<double>(random_values<float>(s.v.q_width, 3));
        const auto wk = widen<double>(random_values<float>(s.v.k_width, 4));
        const auto g = test::qk_norm_backward(dout, x, wq, wk, s.N, s.v, kEps);
        auto loss = [&](const auto& x, const auto& wq, const auto& wk) {
            return dot(test::qk_norm_forward(x, wq, wk, s.N, s.v, kEps).out, dout);
        };
        REQUIRE(gradient_error([&](const auto& v) { return loss(v, wq, wk); }, x, g.dx) < 1e-7);
        REQUIRE(gradient_error([&](const auto& v) { return loss(x, v, wk); }, wq, g.dq_weight) < 1e-7);
        REQUIRE(gradient_error([&](const auto& v) { return loss(x, wq, v); }, wk, g.dk_weight) < 1e-7);
    }
}

namespace {
template <typename T>
struct Device {
    Shape s;
    const Stream& stream;
    std::vector<T> x = random_values<T>(s.size(), 1, 1.0, 0.5), dout = random_values<T>(s.size(), 2),
                   q_weight = random_values<T>(s.v.q_width, 3, 0.5, 1.0),
                   k_weight = random_values<T>(s.v.k_width, 4, 0.5, 1.0);
    Guarded<T> x_device{x, stream}, q_device{q_weight, stream}, k_device{k_weight, stream}, out{s.size(), stream},
        dqkv{s.size(), stream};
    Guarded<float> rstd{int64_t{s.N} * s.v.normed(), stream}, dq{s.v.q_width, stream}, dk{s.v.k_width, stream};
    Guarded<std::byte> scratch{static_cast<int64_t>(qk_norm_backward_scratch_bytes(s.N, s.v)), stream};

    Device(const Shape& s, const Stream& stream) : s(s), stream(stream) {}
    void forward() {
        teon::qk_norm_forward(out.data(), rstd.data(), x_device.data(), q_device.data(), k_device.data(), s.N, s.v,
                              kEps, stream);
    }
    void backward(const std::vector<float>& dq_before, const std::vector<float>& dk_before, bool accumulate = true) {
        dqkv.set(dout);
        dq.set(dq_before);
        dk.set(dk_before);
        teon::qk_norm_backward<T>({.dqkv = dqkv.data(),
                                   .dq_weight = dq.data(),
                                   .dk_weight = dk.data(),
                                   .scratch = scratch.data(),
                                   .x = x_device.data(),
                                   .rstd = rstd.data(),
                                   .q_weight = q_device.data(),
                                   .k_weight = k_device.data(),
                                   .N = s.N,
                                   .accumulate = accumulate},
                                  s.v, stream);
        scratch.get();  // checks the canaries
    }
};
}  // namespace

TEMPLATE_TEST_CASE("kernels/qk_norm: forward and backward match the oracle and add to the weights' gradients", "",
                   float, bf16) {
    using T = TestType;
    Stream stream;
    for (const Shape& s : kShapes) {
        INFO("N = " << s.N << ", " << s.v.queries << " x " << s.v.q_width << ", " << s.v.keys << " x " << s.v.k_width);
        Device<T> d(s, stream);
        d.forward();
        const auto x = widen<Tracked>(d.x);
        const auto wq = widen<Tracked>(d.q_weight);
        const auto wk = widen<Tracked>(d.k_weight);
        const auto expected = test::qk_norm_forward(x, wq, wk, s.N, s.v, kEps);
        REQUIRE(compare(d.out.get(), expected.out, kRoundings));
        REQUIRE(compare(d.rstd.get(), expected.rstd, kRoundings));

        const auto dq = random_values<float>(s.v.q_width, 7);
        const auto dk = random_values<float>(s.v.k_width, 8);
        d.backward(dq, dk);
        auto g = test::qk_norm_backward(widen<Tracked>(d.dout), x, wq, wk, s.N, s.v, kEps);
        for (size_t j = 0; j < dq.size(); ++j) g.dq_weight[j] += Tracked(dq[j]);
        for (size_t j = 0; j < dk.size(); ++j) g.dk_weight[j] += Tracked(dk[j]);
        REQUIRE(compare(d.dqkv.get(), g.dx, kRoundings));
        REQUIRE(compare(d.dq.get(), g.dq_weight, kRoundings));
        REQUIRE(compare(d.dk.get(), g.dk_weight, kRoundings));
        REQUIRE(same_bits(d.x_device.get(), d.x));

        // Overwriting NaN gives the same weight gradients as accumulating to zero.
        auto weights_of = [](int width, float value) { return std::vector<float>(width, value); };
        d.backward(weights_of(s.v.q_width, 0.0f), weights_of(s.v.k_width, 0.0f));
        const auto dq_added = d.dq.get();
        const auto dk_added = d.dk.get();
        d.backward(weights_of(s.v.q_width, NAN), weights_of(s.v.k_width, NAN), false);
        REQUIRE((d.dq.get() == dq_added));
        REQUIRE((d.dk.get() == dk_added));

        // Both passes copy the values and their gradients bit for bit.
        const auto out = d.out.get();
        const auto dx = d.dqkv.get();
        bool untouched = true;
        for (int64_t i = 0; i < s.size(); ++i)
            if (i % s.v.row_width() >= s.v.queries * s.v.q_width + s.v.keys * s.v.k_width)
                untouched &= float(out[i]) == float(d.x[i]) && float(dx[i]) == float(d.dout[i]);
        REQUIRE(untouched);
    }
}

TEMPLATE_TEST_CASE("kernels/qk_norm: the same bits on any number of OS threads", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (const Shape& s : {Shape{65, {4, 2, 64, 64}}, Shape{3, {2, 1, 2304, 2304}}, Shape{65, {1, 1, 64, 32}}}) {
        Device<T> d(s, stream);
        REQUIRE(same_with_any_threads([&] {
            d.forward();
            d.backward(std::vector<float>(s.v.q_width), std::vector<float>(s.v.k_width));
            return bytes_of(d.out.get(), d.rstd.get(), d.dqkv.get(), d.dq.get(), d.dk.get());
        }));
    }
}
