#include "generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

// The share of each token among n draws.
std::map<int, double> frequencies(const std::vector<float>& logits, float temperature, int top_k, int n) {
    Sampler sampler(temperature, top_k, 7);
    std::map<int, double> share;
    for (int i = 0; i < n; ++i) share[sampler.next(logits)] += 1.0 / n;
    return share;
}

std::map<int, double> exact(const std::vector<float>& logits, double temperature, const std::vector<int>& tokens) {
    std::map<int, double> p;
    double sum = 0;
    for (int token : tokens) sum += p[token] = std::exp(logits[static_cast<size_t>(token)] / temperature);
    for (auto& [token, value] : p) value /= sum;
    return p;
}

bool same_distribution(const std::map<int, double>& seen, const std::map<int, double>& expected, int n) {
    for (const auto& [token, share] : seen)
        if (!expected.count(token)) return false;
    for (const auto& [token, p] : expected) {
        // Five standard deviations of a share among n draws. The seed is fixed, so the test is deterministic.
        const double tolerance = 5 * std::sqrt(p * (1 - p) / n);
        const auto found = seen.find(token);
        if (!(std::abs((found == seen.end() ? 0.0 : found->second) - p) <= tolerance)) return false;
    }
    return true;
}

// A generator with scripted logits: token (length * 7) % V is the likeliest.
class ScriptedGenerator final : public Generator {
public:
    explicit ScriptedGenerator(int capacity) : capacity_(capacity) {}
    const std::vector<float>& start(const std::vector<int>& tokens) override {
        length_ = 0;
        return add(tokens);
    }
    const std::vector<float>& step(const std::vector<int>& tokens) override { return add(tokens); }
    int length() const override { return length_; }
    int capacity() const override { return capacity_; }

private:
    const std::vector<float>& add(const std::vector<int>& tokens) {
        length_ += static_cast<int>(tokens.size());
        logits_.assign(16, 0.0f);
        logits_[static_cast<size_t>(length_ * 7 % 16)] = 1.0f;
        return logits_;
    }
    int capacity_, length_ = 0;
    std::vector<float> logits_;
};

SamplingOptions greedy(int tokens) {
    SamplingOptions o;
    o.temperature = 0;
    o.sample_tokens = tokens;
    return o;
}

}  // namespace

TEST_CASE("generation/sampling: tokens have the frequencies of softmax(logits / temperature) over the top k") {
    const std::vector<float> logits = {0.5f, -1.0f, 2.0f, 2.0f, -INFINITY, 0.0f, 1.0f, NAN};
    const int n = 200000;
    const std::vector<int> all = {0, 1, 2, 3, 5, 6};
    REQUIRE(same_distribution(frequencies(logits, 1.0f, 0, n), exact(logits, 1.0, all), n));
    REQUIRE(same_distribution(frequencies(logits, 0.5f, 0, n), exact(logits, 0.5, all), n));
    REQUIRE(same_distribution(frequencies(logits, 2.0f, 99, n), exact(logits, 2.0, all), n));
    REQUIRE(same_distribution(frequencies(logits, 1.0f, 3, n), exact(logits, 1.0, {2, 3, 6}), n));
    const std::map<int, double> one = frequencies(logits, 1.0f, 1, 100);
    REQUIRE(one.size() == 1);
    REQUIRE(one.count(2) == 1);  // the lower of equal logits
    REQUIRE_FALSE(same_distribution(frequencies(logits, 1.0f, 0, n), exact(logits, 1.1, all), n));
}

TEST_CASE("generation/sampling: temperature 0 takes the likeliest token, and large logits do not overflow") {
    Sampler likeliest(0.0f, 50, 1);
    REQUIRE(likeliest.next(std::vector<float>{1.0f, 3.0f, 3.0f}) == 1);
    Sampler hot(0.01f, 0, 1);
    REQUIRE(hot.next(std::vector<float>{3e38f, -3e38f}) == 0);
    REQUIRE_THROWS_AS(hot.next(std::vector<float>{NAN, NAN}), Error);
}

TEST_CASE("generation/sampling: the seed determines the tokens, equally on every machine") {
    auto draw = [](uint64_t seed) {
        Sampler sampler(1.0f, 0, seed);
        std::vector<int> tokens;
        for (int i = 0; i < 8; ++i) tokens.push_back(sampler.next(std::vector<float>(100, 0.0f)));
        return tokens;
    };
    REQUIRE(draw(5) == draw(5));
    REQUIRE(draw(5) != draw(6));
    // The C++ standard defines mt19937_64: with the default seed, its first number is 14514284786278117030.
    REQUIRE(draw(std::mt19937_64::default_seed)[0] == static_cast<int>(14514284786278117030u * 0x1p-64 * 100));
}

TEST_CASE("generation/sampling: a text ends at the limit of tokens, at the end of the context or at an end token") {
    ScriptedGenerator generator(10);
    std::vector<int> streamed;
    const std::vector<int> text =
        sample(generator, {1, 2}, greedy(3), {}, 0, [&](int token) { return streamed.push_back(token), true; });
    REQUIRE(text == std::vector<int>{14, 5, 12});
    REQUIRE(streamed == text);
    REQUIRE(sample(generator, {1, 2}, greedy(100), {}, 0).size() == 8);  // a context of 10 with a prompt of 2
    REQUIRE(sample(generator, {1, 2}, greedy(100), {-1, {3, 12, 5}}, 0) == std::vector<int>{14, 5});
    REQUIRE(sample(generator, {1, 2}, greedy(100), {}, 0, [](int token) { return token != 5; }).size() == 2);
    REQUIRE_THROWS_AS(sample(generator, std::vector<int>(10, 1), greedy(1), {}, 0), UsageError);
}

TEST_CASE("generation/sampling: a prompt is text or tokens of the vocabulary") {
    SamplingOptions o;
    REQUIRE(prompt_of(o, nullptr, {9, {9}}, 10) == std::vector<int>{9});
    REQUIRE_THROWS_AS(prompt_of(o, nullptr, {}, 10), UsageError);
    o.prompt_tokens = {1, 2};
    REQUIRE(prompt_of(o, nullptr, {9, {9}}, 10) == std::vector<int>{1, 2});
    REQUIRE(prompt_of(o, nullptr, {}, 3) == std::vector<int>{1, 2});
    REQUIRE(error_of<UsageError>([&] { prompt_of(o, nullptr, {}, 2); }) ==
            "--prompt-tokens: token 2 is outside the model's vocabulary of 2");
    o.prompt.push_back('a');
    REQUIRE_THROWS_AS(prompt_of(o, nullptr, {9, {9}}, 10), UsageError);
    o.prompt_tokens.clear();
    REQUIRE_THROWS_AS(prompt_of(o, nullptr, {9, {9}}, 10), UsageError);
}
