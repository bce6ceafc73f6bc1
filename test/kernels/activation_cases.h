// The tests that the backward passes of gelu and relu2 share.
#pragma once

#include <cmath>
#include <vector>

#include "test/oracle/tracked.h"
#include "test/support/catch.h"
#include "test/support/compare.h"

namespace teon::test {

// backward(dx, dbias, scratch, x, dout, N, C, accumulate, stream) against oracle(x, dout), which gives dx; `roundings` as
// compare() has it.
template <typename T, typename Backward, typename Oracle>
void check_activation_backward(Backward backward, size_t (*scratch_bytes)(int N, int C), Oracle oracle,
                               double roundings) {
    Stream stream;
    // The last ones have more than one chunk of rows, and more than 8 rows in each.
    for (auto [N, C] : {std::pair{1, 1}, {31, 33}, {33, 31}, {97, 97}, {257, 96}, {17, 768}, {8205, 17}, {8193, 8}}) {
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
        for (size_t i = 0; i < expected.size(); i++) sums[i % static_cast<size_t>(C)] += expected[i];
        REQUIRE(compare(dx.get(), expected, roundings));
        REQUIRE(compare(dbias.get(), sums, roundings));
        REQUIRE(same_bits(x_device.get(), x));
        REQUIRE(same_bits(dout_device.get(), dout));
        scratch.get();  // its canaries

        // Written over what was there, it is what was added to nothing.
        auto bias_gradient = [&](float before, bool accumulate) {
            dbias.set(std::vector<float>(static_cast<size_t>(C), before));
            backward(dx.data(), dbias.data(), scratch.data(), x_device.data(), dout_device.data(), N, C, accumulate,
                     stream);
            return dbias.get();
        };
        REQUIRE((bias_gradient(NAN, false) == bias_gradient(0.0f, true)));

        // In place; and where nobody wants the bias's gradient.
        backward(dout_device.data(), nullptr, scratch.data(), x_device.data(), dout_device.data(), N, C, true, stream);
        REQUIRE(same_bits(dout_device.get(), dx.get()));
    }
}

}  // namespace teon::test
