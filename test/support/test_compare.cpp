#include "test/support/compare.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {
const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();
}  // namespace

TEST_CASE("test/support/compare: equal and nearly equal values pass") {
    std::vector<float> a = {1.0f, -2.0f, 3.0f};
    REQUIRE(compare(a, std::vector<double>{1.0, -2.0, 3.0}, 0.0));
    REQUIRE(compare(a, std::vector<double>{1.0 + 1e-6, -2.0, 3.0 - 1e-6}, 2e-6));
    REQUIRE(compare(std::vector<float>{}, std::vector<double>{}, 0.0));
}

TEST_CASE("test/support/compare: a difference beyond the tolerance fails and is named") {
    Comparison c = compare(std::vector<float>{1.0f, 2.5f}, std::vector<double>{1.0, 2.0}, 0.25);
    REQUIRE_FALSE(c);
    REQUIRE(contains(c.failure, "[1]: 2.5 instead of 2"));
}

TEST_CASE("test/support/compare: NaN and infinity fail whatever the tolerance") {
    for (double bad : {kNan, kInf, -kInf}) {
        std::vector<double> one = {1.0};
        std::vector<double> wrong = {bad};
        REQUIRE_FALSE(compare(wrong, one, 1e300));
        REQUIRE_FALSE(compare(wrong, one, kInf));
        REQUIRE_FALSE(compare(wrong, wrong, 1.0));  // an oracle that is not finite proves nothing
        REQUIRE_FALSE(compare(one, wrong, 1.0));
        REQUIRE_FALSE(compare(one, one, wrong));
        REQUIRE_FALSE(compare(wrong, std::vector<Tracked>{1.0}, 1e300));
    }
    REQUIRE_FALSE(compare(std::vector<bf16>{bf16(NAN)}, std::vector<double>{1.0}, 1e300));
}

TEST_CASE("test/support/compare: swapped values fail") {
    auto values = random_values<float>(257, 1);
    std::vector<Tracked> expected = widen<Tracked>(values);
    REQUIRE(compare(values, expected, 4.0));
    std::swap(values[13], values[211]);
    REQUIRE_FALSE(compare(values, expected, 4.0));
    REQUIRE_FALSE(same_bits(values, random_values<float>(257, 1)));
}

TEST_CASE("test/support/compare: truncated and padded data fail") {
    auto values = random_values<float>(97, 2);
    std::vector<Tracked> expected = widen<Tracked>(values);
    auto shorter = values;
    auto longer = values;
    shorter.pop_back();
    longer.push_back(0.0f);
    REQUIRE_FALSE(compare(shorter, expected, 1e30));
    REQUIRE_FALSE(compare(longer, expected, 1e30));
    REQUIRE_FALSE(compare(std::vector<float>{}, expected, 1e30));
    REQUIRE_FALSE(same_bits(shorter, values));
}

TEST_CASE("test/support/compare: the tolerance of T is one rounding to T") {
    auto exact = random_values<float>(1000, 3);
    std::vector<bf16> once;
    std::vector<bf16> twice;
    for (float x : exact) once.push_back(bf16(x));
    for (bf16 x : once) twice.push_back(bf16(static_cast<float>(x) * 1.02f));  // off by more than two roundings
    REQUIRE(compare(once, widen<Tracked>(exact), 0.0));
    REQUIRE_FALSE(compare(twice, widen<Tracked>(exact), 4.0));
}

TEST_CASE("test/support/compare: equality of bits tells zero from minus zero and knows NaN") {
    REQUIRE_FALSE(same_bits(std::vector<float>{0.0f}, std::vector<float>{-0.0f}));
    REQUIRE(same_bits(std::vector<float>{NAN}, std::vector<float>{NAN}));
}

TEST_CASE("test/support/compare: a tracked sum with cancellation keeps the magnitude of its terms") {
    Tracked big = 1e6;
    Tracked difference = (big + Tracked(1.0)) - big;
    REQUIRE(difference.value == 1.0);
    REQUIRE(difference.magnitude >= 2e6);
    Tracked product = Tracked(3.0) * Tracked(-4.0);
    REQUIRE(product.value == -12.0);
    REQUIRE(product.magnitude == 24.0);
    REQUIRE(std::abs(tanh(Tracked(20.0)).magnitude - 1.0) < 1e-9);
}

TEST_CASE("test/support/compare: a guarded buffer returns what was put in and starts as NaN") {
    Stream stream;
    auto values = random_values<bf16>(33, 4);
    Guarded<bf16> buffer(values, stream);
    REQUIRE(same_bits(buffer.get(), values));
    Guarded<float> fresh(31, stream);
    for (float x : fresh.get()) REQUIRE(std::isnan(x));
    REQUIRE_THROWS_AS(buffer.set(std::vector<bf16>(32)), Error);
}

TEST_CASE("test/support/compare: a write just outside a guarded buffer is caught") {
    Stream stream;
    const float zero = 0.0f;
    for (int64_t offset : {-1, 33, -64, 96}) {
        Guarded<float> buffer(random_values<float>(33, 5), stream);
        upload(buffer.data() + offset, &zero, 1, stream);
        REQUIRE_THROWS_AS(buffer.get(), Error);
    }
}
