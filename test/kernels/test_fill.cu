#include <algorithm>
#include <cmath>

#include "kernels/fill.h"
#include "kernels/philox.h"
#include "test/oracle/dropout.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

TEST_CASE("kernels/fill: Philox4x32-10 and the tests' own give the published known answers") {
    // Random123's kat_vectors (https://github.com/DEShawResearch/random123, tests/kat_vectors): counter, key, result.
    const uint32_t answers[3][10] = {{0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                     {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff,
                                      0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                     {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0,
                                      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (const auto& a : answers) {
        const PhiloxCounter result = philox4x32_10({{a[0], a[1], a[2], a[3]}}, {{a[4], a[5]}});
        const auto by_oracle = philox_oracle({a[0], a[1], a[2], a[3]}, a[4], a[5]);
        for (int i = 0; i < 4; ++i) REQUIRE((result.v[i] == a[6 + i] && by_oracle[i] == a[6 + i]));
    }
}

TEST_CASE("kernels/fill: uniform numbers stay inside (0, 1)") {
    REQUIRE(uniform_of(0) == 0x1p-24f);
    REQUIRE(uniform_of(0xffffffffu) == 1.0f - 0x1p-24f);
}

static std::vector<float> normal(int rows, int cols, int logical_rows, int logical_cols, float std, uint64_t seed,
                                 uint64_t tensor) {
    Stream stream;
    Guarded<float> x(int64_t{rows} * cols, stream);
    fill_normal(x.data(), rows, cols, logical_rows, logical_cols, std, seed, tensor, stream);
    return x.get();
}

TEST_CASE("kernels/fill: normal numbers are Box-Muller of Philox(element / 4, tensor; seed)") {
    const uint64_t seed = 0x123456789abcdefull;
    const uint64_t tensor = 0xfedcba9876543210ull;
    const auto x = normal(3, 33, 3, 33, 0.5f, seed, tensor);
    std::vector<Tracked> expected;
    for (uint32_t q = 0; expected.size() < x.size(); ++q) {
        const PhiloxCounter bits =
            philox4x32_10({{q, 0, uint32_t(tensor), uint32_t(tensor >> 32)}}, {{uint32_t(seed), uint32_t(seed >> 32)}});
        for (int k = 0; k < 4; k += 2) {
            const Tracked u = static_cast<double>(uniform_of(bits.v[k]));
            const Tracked v = static_cast<double>(uniform_of(bits.v[k + 1]));
            const Tracked radius = Tracked(0.5) * sqrt(Tracked(-2.0) * log(u));
            const Tracked angle = Tracked(2.0 * M_PI) * v;
            expected.push_back(radius * cos(angle));
            expected.push_back(radius * sin(angle));
        }
    }
    expected.resize(x.size());
    REQUIRE(compare(x, expected, 4.0));  // logarithm, square root, sine: at most 2 ulp each
}

TEST_CASE("kernels/fill: a number depends only on seed, tensor and element, not on padding") {
    const auto x = normal(31, 33, 31, 33, 1.0f, 7, 3);
    const auto padded = normal(40, 64, 31, 33, 1.0f, 7, 3);
    for (int i = 0; i < 40; ++i) {
        for (int j = 0; j < 64; ++j) {
            const float expected = i < 31 && j < 33 ? x[i * 33 + j] : 0.0f;
            REQUIRE(padded[i * 64 + j] == expected);
        }
    }
    REQUIRE(same_bits(normal(1, 31 * 33, 1, 31 * 33, 1.0f, 7, 3), x));
    REQUIRE_FALSE(same_bits(normal(31, 33, 31, 33, 1.0f, 8, 3), x));
    REQUIRE_FALSE(same_bits(normal(31, 33, 31, 33, 1.0f, 7, 4), x));
    REQUIRE_THROWS_AS(normal(31, 33, 32, 33, 1.0f, 7, 3), Error);
    REQUIRE_THROWS_AS(normal(31, 33, 31, 34, 1.0f, 7, 3), Error);
}

TEST_CASE("kernels/fill: normal numbers have the moments and quantiles of the normal distribution") {
    auto x = normal(1000, 1000, 1000, 1000, 1.0f, 42, 0);
    const double n = static_cast<double>(x.size());
    double moments[5] = {};
    for (float v : x)
        for (int k = 1; k <= 4; ++k) moments[k] += std::pow(static_cast<double>(v), k) / n;
    // Five standard errors of each moment. The variances of x, x^2, x^3, x^4 are 1, 2, 15, 96.
    const double expected[5] = {0, 0, 1, 0, 3};
    const double variance[5] = {0, 1, 2, 15, 96};
    for (int k = 1; k <= 4; ++k) REQUIRE(std::abs(moments[k] - expected[k]) <= 5 * std::sqrt(variance[k] / n));
    std::sort(x.begin(), x.end());
    double worst = 0.0;  // Kolmogorov-Smirnov statistic
    for (size_t i = 0; i < x.size(); ++i) {
        const double cdf = 0.5 * std::erfc(-static_cast<double>(x[i]) / std::sqrt(2.0));
        worst = std::max(worst, std::abs(cdf - (static_cast<double>(i) + 0.5) / n));
    }
    REQUIRE(worst <= 1.95 / std::sqrt(n));  // one seed in 1000 exceeds this by chance; the seed is fixed
}

TEST_CASE("kernels/fill: fill_constant writes the constant, and zeros to the padding") {
    Stream stream;
    for (auto [rows, cols, logical_rows, logical_cols] :
         {std::array{1, 1, 1, 1}, {31, 33, 31, 33}, {97, 128, 90, 100}, {257, 5, 1, 5}, {3, 4, 0, 0}}) {
        Guarded<float> x(int64_t{rows} * cols, stream);
        fill_constant(x.data(), rows, cols, logical_rows, logical_cols, 1.25f, stream);
        std::vector<float> expected;
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < cols; ++j) expected.push_back(i < logical_rows && j < logical_cols ? 1.25f : 0.0f);
        REQUIRE(same_bits(x.get(), expected));
    }
}

template <typename Dst, typename Src>
static void check_cast() {
    Stream stream;
    for (int64_t n : {1, 31, 33, 97, 128, 257, 768, 70001}) {
        auto x = random_values<Src>(n, 1);
        x[0] = Src(n % 2 == 0 ? NAN : INFINITY);
        x[static_cast<size_t>(n) / 2] = Src(-1e-30f);
        std::vector<Dst> expected;
        for (Src v : x) expected.push_back(Dst(static_cast<float>(v)));
        Guarded<Src> src(x, stream);
        Guarded<Dst> dst(n, stream);
        cast(dst.data(), src.data(), n, stream);
        auto results = dst.get();
        if (n % 2 == 0) {  // the sign and the payload of NaN differ between processors
            REQUIRE(std::isnan(static_cast<float>(results[0])));
            results[0] = expected[0];
        }
        REQUIRE(same_bits(results, expected));
    }
}

TEST_CASE("kernels/fill: casts round each element as the type's constructor does") {
    check_cast<float, float>();
    check_cast<float, bf16>();
    check_cast<float, f16>();
    check_cast<bf16, float>();
    check_cast<bf16, bf16>();
    check_cast<bf16, f16>();
    check_cast<f16, float>();
    check_cast<f16, bf16>();
    check_cast<f16, f16>();
}

TEST_CASE("kernels/fill: the same bits on any number of OS threads") {
    Stream stream;
    Guarded<float> x(97 * 128, stream);
    Guarded<float> y(97 * 128, stream);
    Guarded<bf16> z(97 * 128, stream);
    REQUIRE(same_with_any_threads([&] {
        fill_normal(x.data(), 97, 128, 90, 100, 1.0f, 1, 2, stream);
        fill_constant(y.data(), 97, 128, 90, 100, 1.0f, stream);
        cast(z.data(), x.data(), x.size(), stream);
        return bytes_of(x.get(), y.get(), z.get());
    }));
}
