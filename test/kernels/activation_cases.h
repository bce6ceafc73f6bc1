// Tests that gelu and relu2 share. The functions under test and their oracles are generic lambdas.
#pragma once

#include <cmath>
#include <vector>

#include "test/oracle/differences.h"
#include "test/oracle/tracked.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

namespace teon::test {

template <typename Forward, typename Backward>
void check_activation_oracle(Forward forward, Backward backward) {
    const auto x = widen<double>(random_values<float>(50, 1, 2.0)), dout = widen<double>(random_values<float>(50, 2));
    auto loss = [&](const std::vector<double>& v) { return dot(forward(v), dout); };
    REQUIRE(gradient_error(loss, x, backward(x, dout)) < 1e-7);
}

// Compares forward(out, x, n, stream) with oracle(x), also in place and at unaligned addresses.
template <typename T, typename Forward, typename Oracle>
void check_activation_forward(Forward forward, Oracle oracle, double roundings) {
    Stream stream;
    for (int64_t n : {1, 31, 33, 97, 128, 257, 768, 4096, 100003}) {
        INFO("n = " << n);
        const auto x = random_values<T>(n, 1, 3.0);
        Guarded<T> x_device(x, stream), out(n, stream);
        forward(out.data(), x_device.data(), n, stream);
        REQUIRE(compare(out.get(), oracle(widen<Tracked>(x)), roundings));
        REQUIRE(same_bits(x_device.get(), x));

        std::vector<T> shifted = x;
        shifted.insert(shifted.begin(), T(0.0f));
        Guarded<T> shifted_device(shifted, stream), out_shifted(n, stream);
        forward(out_shifted.data(), shifted_device.data() + 1, n, stream);
        REQUIRE(same_bits(out_shifted.get(), out.get()));

        forward(x_device.data(), x_device.data(), n, stream);
        REQUIRE(same_bits(x_device.get(), out.get()));
    }
}

// The expected value and slope at x.
struct ActivationAt {
    float x, value, slope;
};
// Checks the value and, to within `tolerance`, the slope at each x, and that NaN stays NaN.
template <typename T, typename Forward, typename Backward>
void check_activation_at(Forward forward, Backward backward, size_t (*scratch_bytes)(int N, int C),
                         const std::vector<ActivationAt>& expected, float tolerance) {
    Stream stream;
    std::vector<T> x;
    for (const ActivationAt& e : expected) x.push_back(T(e.x));
    x.push_back(T(NAN));
    const int n = static_cast<int>(x.size());
    Guarded<T> x_device(x, stream), out(n, stream), dx(n, stream), ones(std::vector<T>(x.size(), T(1.0f)), stream);
    forward(out.data(), x_device.data(), n, stream);
    Guarded<std::byte> scratch(static_cast<int64_t>(scratch_bytes(n, 1)), stream);
    backward(dx.data(), nullptr, scratch.data(), x_device.data(), ones.data(), n, 1, true, stream);
    const auto y = out.get(), slope = dx.get();
    for (size_t i = 0; i < expected.size(); ++i) {
        REQUIRE(static_cast<float>(y[i]) == static_cast<float>(T(expected[i].value)));
        REQUIRE(std::abs(static_cast<float>(slope[i]) - expected[i].slope) <= tolerance);
    }
    REQUIRE(std::isnan(static_cast<float>(y.back())));
    REQUIRE(std::isnan(static_cast<float>(slope.back())));
}

template <typename T, typename Forward, typename Backward>
void check_activation_schedules(Forward forward, Backward backward, size_t (*scratch_bytes)(int N, int C)) {
    Stream stream;
    const int N = 257, C = 96, n = N * C;
    Guarded<T> x(random_values<T>(n, 5), stream), dout(random_values<T>(n, 6), stream), out(n, stream), dx(n, stream);
    Guarded<float> dbias(C, stream);
    Guarded<std::byte> scratch(static_cast<int64_t>(scratch_bytes(N, C)), stream);
    REQUIRE(same_with_any_threads([&] {
        dbias.set(std::vector<float>(C, 1.0f));
        forward(out.data(), x.data(), n, stream);
        backward(dx.data(), dbias.data(), scratch.data(), x.data(), dout.data(), N, C, true, stream);
        return bytes_of(out.get(), dx.get(), dbias.get());
    }));
}

// Compares backward(dx, dbias, scratch, x, dout, N, C, accumulate, stream) with oracle(x, dout), which returns dx.
// `roundings` is the tolerance of compare().
template <typename T, typename Backward, typename Oracle>
void check_activation_backward(Backward backward, size_t (*scratch_bytes)(int N, int C), Oracle oracle,
                               double roundings) {
    Stream stream;
    // The last two have chunks of more than 8 rows.
    using Shape = std::pair<int, int>;
    for (const Shape& shape :
         {Shape{1, 1}, {31, 33}, {33, 31}, {97, 97}, {257, 96}, {17, 768}, {8205, 17}, {8193, 8}}) {
        const int N = shape.first;
        const int C = shape.second;
        INFO("N = " << N << ", C = " << C);
        const int64_t n = int64_t{N} * C;
        const auto x = random_values<T>(n, 1, 3.0), dout = random_values<T>(n, 2);
        const auto before = random_values<float>(C, 3);
        Guarded<T> x_device(x, stream), dout_device(dout, stream), dx(n, stream);
        Guarded<float> dbias(before, stream);
        Guarded<std::byte> scratch(static_cast<int64_t>(scratch_bytes(N, C)), stream);
        backward(dx.data(), dbias.data(), scratch.data(), x_device.data(), dout_device.data(), N, C, true, stream);
        const auto expected = oracle(widen<Tracked>(x), widen<Tracked>(dout));
        auto sums = widen<Tracked>(before);
        for (size_t i = 0; i < expected.size(); ++i) sums[i % static_cast<size_t>(C)] += expected[i];
        REQUIRE(compare(dx.get(), expected, roundings));
        REQUIRE(compare(dbias.get(), sums, roundings));
        REQUIRE(same_bits(x_device.get(), x));
        REQUIRE(same_bits(dout_device.get(), dout));
        scratch.get();  // checks the canaries

        // Overwriting NaN gives the same bias gradient as accumulating to zero.
        auto bias_gradient = [&](float before, bool accumulate) {
            dbias.set(std::vector<float>(static_cast<size_t>(C), before));
            backward(dx.data(), dbias.data(), scratch.data(), x_device.data(), dout_device.data(), N, C, accumulate,
                     stream);
            return dbias.get();
        };
        REQUIRE((bias_gradient(NAN, false) == bias_gradient(0.0f, true)));

        // In place and without a bias gradient.
        backward(dout_device.data(), nullptr, scratch.data(), x_device.data(), dout_device.data(), N, C, true, stream);
        REQUIRE(same_bits(dout_device.get(), dx.get()));
    }
}

}  // namespace teon::test
