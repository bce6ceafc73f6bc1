#include "data/permutation.h"

#include <map>
#include <random>
#include <vector>

#include "test/support/catch.h"

using namespace teon;

namespace {

std::vector<int64_t> permuted(int64_t n, uint64_t seed, uint64_t epoch) {
    Permutation permutation(n, seed, epoch);
    std::vector<int64_t> out(n);
    for (int64_t i = 0; i < n; ++i) out[i] = permutation(i);
    return out;
}

bool is_bijection(const std::vector<int64_t>& image) {
    std::vector<bool> seen(image.size(), false);
    for (int64_t x : image) {
        if (x < 0 || x >= static_cast<int64_t>(image.size()) || seen[x]) return false;
        seen[x] = true;
    }
    return true;
}

// Returns the chi-square of counts that should all be equal, in standard deviations from its mean. For many cells it is
// distributed about like normal(0, 1).
double deviations(const std::vector<double>& counts) {
    double total = 0;
    double chi = 0;
    double freedom = static_cast<double>(counts.size()) - 1;
    for (double c : counts) total += c;
    double expected = total / static_cast<double>(counts.size());
    for (double c : counts) chi += (c - expected) * (c - expected) / expected;
    return (chi - freedom) / std::sqrt(2 * freedom);
}

}  // namespace

TEST_CASE("data/permutation: every index comes once, for all n to 2000 and for random n to a million") {
    std::mt19937_64 random(1);
    for (int64_t i = 1; i <= 2012; ++i) {
        const auto n = i <= 2000 ? i : static_cast<int64_t>(random() % 1000000 + 1);
        INFO("n = " << n);
        REQUIRE(is_bijection(permuted(n, random(), random())));
    }
}

TEST_CASE("data/permutation: images of indices beyond 32 bits are in range and distinct") {
    for (int64_t n : {(int64_t{1} << 33) + 1, int64_t{1000000007} * 999999937, (int64_t{1} << 62) - 1}) {
        Permutation permutation(n, 3, 5);
        std::map<int64_t, int64_t> preimage;
        for (int64_t k = 0; k < 20000; ++k) {
            int64_t i = k % 2 ? n - 1 - k : k;
            int64_t x = permutation(i);
            REQUIRE((x >= 0 && x < n));
            REQUIRE(preimage.emplace(x, i).second);
        }
    }
}

TEST_CASE("data/permutation: it depends on seed and epoch, and on nothing else") {
    REQUIRE(permuted(1000, 1, 0) == permuted(1000, 1, 0));
    REQUIRE(permuted(1000, 1, 0) != permuted(1000, 2, 0));
    REQUIRE(permuted(1000, 1, 0) != permuted(1000, 1, 1));
    REQUIRE(permuted(1000, 1, 2) != permuted(1000, 2, 1));
}

// The keys are fixed, and so are the results. By chance, a deviation of 5 would occur once in millions of keys.
TEST_CASE("data/permutation: all orders of a few elements are equally likely") {
    for (int64_t n = 2; n <= 6; ++n) {
        int orders = 1;
        for (int i = 2; i <= n; ++i) orders *= i;
        std::map<std::vector<int64_t>, int> count;
        for (int epoch = 0; epoch < 200 * orders; ++epoch) ++count[permuted(n, 11, epoch)];
        INFO("n = " << n);
        REQUIRE(static_cast<int>(count.size()) == orders);
        std::vector<double> counts;
        for (auto& entry : count) counts.push_back(entry.second);
        REQUIRE(std::abs(deviations(counts)) < 5);
    }
}

TEST_CASE("data/permutation: each place is filled by each element, and followed by each, equally often") {
    for (int64_t n : {7, 16, 31, 33, 64, 97}) {
        std::vector<double> at(n * n, 0);
        std::vector<double> step(n, 0);
        for (int epoch = 0; epoch < 4000; ++epoch) {
            std::vector<int64_t> order = permuted(n, 5, epoch);
            for (int64_t i = 0; i < n; ++i) ++at[i * n + order[i]];
            for (int64_t i = 0; i + 1 < n; ++i) ++step[(order[i + 1] - order[i] + n) % n];
        }
        INFO("n = " << n);
        REQUIRE(std::abs(deviations(at)) < 5);
        REQUIRE(step[0] == 0);
        step.erase(step.begin());
        REQUIRE(std::abs(deviations(step)) < 5);
    }
}

TEST_CASE("data/permutation: neighbours are taken far apart") {
    // For a uniform order the mean distance of two elements is n / 3; its standard error here is about 0.0003 n.
    const int64_t n = 1000000;
    Permutation permutation(n, 1337, 0);
    double distance = 0;
    for (int64_t i = 0; i + 1 < n; ++i) distance += std::abs(static_cast<double>(permutation(i + 1) - permutation(i)));
    REQUIRE(std::abs(distance / static_cast<double>(n) / static_cast<double>(n) - 1.0 / 3) < 0.0015);
}

TEST_CASE("data/permutation: an impossible size is an error") {
    REQUIRE_THROWS_AS(Permutation(0, 1, 1), Error);
    REQUIRE_THROWS_AS(Permutation(-5, 1, 1), Error);
    REQUIRE_THROWS_AS(Permutation(int64_t{1} << 62, 1, 1), Error);
}
