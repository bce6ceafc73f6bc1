// Rotary positions (kernels/rotary.h): the oracle is right, the kernels match it, and backward inverts forward.
#include "kernels/rotary.h"
#include "test/oracle/differences.h"
#include "test/oracle/rotary.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

namespace {

struct Shape {
    int N, NH, NKV, HS;
};
// Half heads of 1 element, of odd width, and of one or several vectors. A warp processes the rows of the last two on a
// CPU.
const std::vector<Shape> kShapes = {{1, 1, 1, 2},    {31, 3, 1, 6},    {33, 4, 2, 10},  {97, 2, 2, 32},
                                    {128, 8, 8, 64}, {257, 4, 1, 128}, {3, 33, 1, 130}, {2, 40, 8, 128}};

std::vector<float> inverse_frequencies(int HS) {
    std::vector<float> inv_freq;
    for (int j = 0; j < HS / 2; ++j) inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * j / HS)));
    return inv_freq;
}

// How far x may be from itself after forward and backward. Roundings to T: both elements of a pair, then the result.
// Roundings to float: products and sums in both directions, and cos^2 + sin^2 = 1.
template <typename T>
std::vector<double> round_trip_tolerance(const std::vector<T>& x, int HS) {
    std::vector<double> tolerance;
    for (size_t i = 0; i < x.size(); ++i) {
        const auto half = static_cast<size_t>(HS / 2);
        const T other = x[i % (2 * half) < half ? i + half : i - half];
        const double size = std::abs(static_cast<double>(x[i])) + std::abs(static_cast<double>(other));
        tolerance.push_back((3 * kUnitRoundoff<T> + 6 * kUnitRoundoff<float>)*size);
    }
    return tolerance;
}

}  // namespace

TEST_CASE("kernels/rotary: the oracle's backward is the derivative of its forward") {
    const int N = 3;
    const int NH = 2;
    const int NKV = 1;
    const int HS = 6;
    const std::vector<int> positions = {0, 5, 2};
    const auto table = test::rotary_table(inverse_frequencies(HS), 6);
    const auto x = widen<double>(random_values<float>(N * (NH + 2 * NKV) * HS, 1));
    const auto dout = widen<double>(random_values<float>(static_cast<int64_t>(x.size()), 2));
    auto loss = [&](const std::vector<double>& v) {
        return dot(rotate(v, table, positions, N, NH, NKV, HS, 1.0), dout);
    };
    REQUIRE(gradient_error(loss, x, rotate(dout, table, positions, N, NH, NKV, HS, -1.0)) < 1e-7);
}

TEST_CASE("kernels/rotary: the table holds cosines and sines of float angles") {
    Stream stream;
    for (auto [HS, positions] : {std::pair{2, 1}, {6, 33}, {64, 257}, {128, 8192}}) {
        const auto inv_freq = inverse_frequencies(HS);
        Guarded<float> inv_freq_device(inv_freq, stream);
        Guarded<float> table(int64_t{positions} * HS, stream);
        const float size = HS == 6 ? 1.25f : 1.0f;
        teon::rotary_table(table.data(), inv_freq_device.data(), positions, HS, size, stream);
        std::vector<double> expected = test::rotary_table(inv_freq, positions);
        for (double& x : expected) x *= size;
        // Sine and cosine are within 2 ulp of numbers below 1, for any angle; their multiple is rounded once more.
        REQUIRE(compare(table.get(), expected, (size == 1.0f ? 2 : 3.5) * 0x1p-24));
    }
    Guarded<float> none(6, stream);
    REQUIRE_THROWS_AS(teon::rotary_table(none.data(), none.data(), 1, 5, 1.0f, stream), Error);
    REQUIRE_THROWS_AS(rotary_forward(none.data(), none.data(), nullptr, 1, 1, 1, 1, stream), Error);
}

TEMPLATE_TEST_CASE("kernels/rotary: forward and backward match the oracle and invert each other", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, NH, NKV, HS] : kShapes) {
        INFO("N = " << N << ", NH = " << NH << ", NKV = " << NKV << ", HS = " << HS);
        const int64_t width = int64_t{NH + 2 * NKV} * HS;
        const int T_max = 300;
        const auto x = random_values<T>(N * width, 1);
        const auto positions = random_ints(N, 2, T_max);
        const auto inv_freq = inverse_frequencies(HS);
        Guarded<float> inv_freq_device(inv_freq, stream);
        Guarded<float> table(int64_t{T_max} * HS, stream);
        teon::rotary_table(table.data(), inv_freq_device.data(), T_max, HS, 1.0f, stream);
        const auto table_values = widen<Tracked>(table.get());
        Guarded<int> positions_device(positions, stream);
        Guarded<T> qkv(x, stream);
        rotary_forward(qkv.data(), table.data(), positions_device.data(), N, NH, NKV, HS, stream);
        const auto turned = qkv.get();
        // Two products and their sum in float.
        REQUIRE(compare(turned, rotate(widen<Tracked>(x), table_values, positions, N, NH, NKV, HS, 1.0), 1.0));
        rotary_backward(qkv.data(), table.data(), positions_device.data(), N, NH, NKV, HS, stream);
        const auto back = qkv.get();
        REQUIRE(compare(back, rotate(widen<Tracked>(turned), table_values, positions, N, NH, NKV, HS, -1.0), 1.0));
        REQUIRE(compare(back, widen<double>(x), round_trip_tolerance(x, HS)));
        const int64_t value_width = int64_t{NKV} * HS;
        for (int row = 0; row < N; ++row) {  // values are not rotated
            const auto values = [&](const std::vector<T>& of) {
                const auto end = of.begin() + (row + 1) * width;
                return std::vector<T>(end - value_width, end);
            };
            REQUIRE(same_bits(values(turned), values(x)));
        }
    }
}

TEMPLATE_TEST_CASE("kernels/rotary: the same bits on any number of OS threads", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, NH, NKV, HS] : {Shape{128, 4, 2, 64}, Shape{3, 33, 1, 130}}) {
        const auto x = random_values<T>(int64_t{N} * (NH + 2 * NKV) * HS, 1);
        Guarded<float> table(random_values<float>(int64_t{N} * HS, 2), stream);
        Guarded<int> positions(random_ints(N, 3, N), stream);
        Guarded<T> qkv(x, stream);
        REQUIRE(same_with_any_threads([&, N = N, NH = NH, NKV = NKV, HS = HS] {
            qkv.set(x);
            rotary_forward(qkv.data(), table.data(), positions.data(), N, NH, NKV, HS, stream);
            return bytes_of(qkv.get());
        }));
    }
}
