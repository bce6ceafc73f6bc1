#include "kernels/dropout.h"

#include <algorithm>
#include <cmath>

#include "test/oracle/dropout.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr int64_t kFirstSample = (int64_t{1} << 32) - 1;  // the second sample needs the high word
const DropoutMask kMask{.p = 0.1f, .seed = 0x123456789abcdef0, .site = 3000, .first_sequence = 4};

struct Rows {
    int B, T, C;
    int64_t size() const { return int64_t{B} * T * C; }
};
// With and without vectors, and rows that a warp processes.
const std::vector<Rows> kShapes = {{1, 1, 1},   {2, 3, 1},  {2, 5, 31},   {3, 7, 33},
                                   {2, 33, 64}, {1, 2, 97}, {2, 2, 2049}, {1, 3, 2304}};

template <typename T>
std::vector<T> run(const Rows& s, const std::vector<T>& in, const std::vector<T>& residual, DropoutMask mask) {
    Stream stream;
    Guarded<int64_t> first_sample(std::vector<int64_t>{kFirstSample}, stream);
    Guarded<T> x(in, stream);
    Guarded<T> r(residual, stream);
    Guarded<T> out(s.size(), stream);
    mask.first_sample = first_sample.data();
    const T* none = nullptr;
    dropout(out.data(), residual.empty() ? none : r.data(), x.data(), s.B * s.T, s.T, s.C, mask, stream);
    std::vector<T> apart = out.get();
    dropout(x.data(), residual.empty() ? none : r.data(), x.data(), s.B * s.T, s.T, s.C, mask, stream);
    REQUIRE(same_bits(x.get(), apart));  // in place
    return apart;
}

double factor(const Rows& s, const DropoutMask& m, int64_t i) {
    const int64_t row = i / s.C;
    const int64_t sample = kFirstSample + m.first_sequence + row / s.T;
    return dropout_factor(m.p, m.seed, m.site, static_cast<uint64_t>(sample), static_cast<uint32_t>(row % s.T),
                          static_cast<uint32_t>(i % s.C));
}

// The factors of a large tensor: 0 or 1 / (1 - p).
std::vector<float> factors(const Rows& s, const DropoutMask& mask) {
    return run(s, std::vector<float>(s.size(), 1.0f), {}, mask);
}

}  // namespace

TEMPLATE_TEST_CASE("kernels/dropout: elements are dropped or scaled as the mask's definition says", "", float, bf16) {
    using T = TestType;
    for (const Rows& s : kShapes)
        for (const float p : {0.1f, 0.5f, 0.99f}) {
            INFO("B = " << s.B << ", T = " << s.T << ", C = " << s.C << ", p = " << p);
            DropoutMask mask = kMask;
            mask.p = p;
            const std::vector<T> in = random_values<T>(s.size(), 1);
            const std::vector<T> residual = random_values<T>(s.size(), 2);
            std::vector<Tracked> scaled;
            std::vector<Tracked> added;
            for (int64_t i = 0; i < s.size(); ++i) {
                // The float factor has two roundings, of 1 - p and of the division; near p = 1 the first one grows.
                const double f = factor(s, mask, i);
                const Tracked product = Tracked(static_cast<double>(static_cast<float>(in[i]))) * Tracked(f, 4 * f);
                scaled.push_back(product);
                added.push_back(product + Tracked(static_cast<double>(static_cast<float>(residual[i]))));
            }
            REQUIRE(compare(run(s, in, {}, mask), scaled, 2));
            REQUIRE(compare(run(s, in, residual, mask), added, 2));
            const std::vector<T> out = run(s, in, residual, mask);
            for (int64_t i = 0; i < s.size(); ++i)
                if (factor(s, mask, i) == 0) REQUIRE(static_cast<float>(out[i]) == static_cast<float>(residual[i]));
        }
}

TEST_CASE("kernels/dropout: with p = 0 nothing changes, and values that are not finite are not dropped") {
    const Rows s{2, 3, 64};
    DropoutMask mask = kMask;
    std::vector<float> in = random_values<float>(s.size(), 1);
    mask.p = 0;
    REQUIRE(same_bits(run(s, in, {}, mask), in));
    mask.p = 0.9f;
    std::fill(in.begin(), in.end(), NAN);
    for (float x : run(s, in, {}, mask)) REQUIRE(std::isnan(x));
    std::fill(in.begin(), in.end(), INFINITY);
    for (float x : run(s, in, {}, mask)) REQUIRE_FALSE(std::isfinite(x));
}

TEST_CASE("kernels/dropout: the mask's mean is 1 within 5 sigma, and masks of neighbours are independent") {
    const Rows s{4, 64, 512};
    const auto n = static_cast<double>(s.size());
    const auto mean_product = [&](const std::vector<float>& a, const std::vector<float>& b, size_t shift) {
        double sum = 0;
        for (size_t i = 0; i + shift < a.size(); ++i) sum += (double{a[i]} - 1) * (double{b[i + shift]} - 1);
        return sum / n;
    };
    for (const float p : {0.01f, 0.1f, 0.5f, 0.9f}) {
        INFO("p = " << p);
        DropoutMask mask = kMask;
        mask.p = p;
        const std::vector<float> a = factors(s, mask);
        double sum = 0;
        for (float f : a) sum += f;
        // A factor has mean 1 and variance p / (1 - p).
        const double variance = double{p} / (1 - double{p});
        REQUIRE(std::abs(sum / n - 1) < 5 * std::sqrt(variance / n));
        // The product of two independent deviations has mean 0 and variance p^2 / (1 - p)^2.
        const double limit = 5 * variance / std::sqrt(n);
        for (const size_t shift : {1, 2, 3, 4, 512, 512 * 64}) REQUIRE(std::abs(mean_product(a, a, shift)) < limit);
        for (int which = 0; which < 3; ++which) {
            DropoutMask other = mask;
            if (which == 0) ++other.site;
            if (which == 1) ++other.seed;
            if (which == 2) other.first_sequence += s.B;
            REQUIRE(std::abs(mean_product(a, factors(s, other), 0)) < limit);
        }
    }
}

TEST_CASE("kernels/dropout: the same bits on any number of OS threads, and for a part of the sequences") {
    const Rows s{4, 33, 96};
    const std::vector<float> whole = factors(s, kMask);
    REQUIRE(same_with_any_threads([&] { return bytes_of(factors(s, kMask)); }, {1, 3}));
    DropoutMask mask = kMask;
    mask.first_sequence += 3;
    REQUIRE(same_bits(factors({1, s.T, s.C}, mask), std::vector<float>(whole.end() - s.T * s.C, whole.end())));
}

TEST_CASE("kernels/dropout: impossible probabilities, sites and batches are refused") {
    Stream stream;
    float* none = nullptr;
    const int64_t sample = 0;
    const auto refused = [&](const DropoutMask& mask) {
        return !error_of<Error>([&] { dropout(none, none, none, 1, 1, 1, mask, stream); }).empty();
    };
    REQUIRE(refused({.p = 1.0f, .first_sample = &sample}));
    REQUIRE(refused({.p = -0.1f, .first_sample = &sample}));
    REQUIRE(refused({.p = NAN, .first_sample = &sample}));
    REQUIRE(refused({.p = 0.5f, .site = 1 << 14, .first_sample = &sample}));
    REQUIRE(refused({.p = 0.5f}));
}
