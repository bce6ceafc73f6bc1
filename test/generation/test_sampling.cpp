#include "generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

// How often each token was drawn in n draws.
std::map<int, int> counts(const std::vector<float>& logits, float temperature, int top_k, int n, double top_p = 1) {
    Sampler sampler(temperature, top_k, top_p, 7);
    std::map<int, int> drawn;
    for (int i = 0; i < n; ++i) ++drawn[sampler.next(logits)];
    return drawn;
}

std::vector<int> tokens_of(const std::map<int, int>& drawn) {
    std::vector<int> tokens;
    for (const auto& [token, count] : drawn) tokens.push_back(token);
    return tokens;
}

std::map<int, double> exact(const std::vector<float>& logits, double temperature, const std::vector<int>& tokens) {
    std::map<int, double> p;
    double sum = 0;
    for (int token : tokens) sum += p[token] = std::exp(logits[static_cast<size_t>(token)] / temperature);
    for (auto& [token, value] : p) value /= sum;
    return p;
}

// Whether the tokens are those that are expected and Pearson's chi-square of their counts is one of a million: by
// Laurent and Massart (Annals of Statistics 28, 2000, lemma 1) it leaves these bounds with a probability of at most
// e^-x each. The seed is fixed, so the test is deterministic.
bool same_distribution(const std::map<int, int>& seen, const std::map<int, double>& expected, int n) {
    double chi_square = 0;
    for (const auto& [token, p] : expected) {
        const auto drawn = seen.find(token);
        if (drawn == seen.end()) return false;
        chi_square += (drawn->second - n * p) * (drawn->second - n * p) / (n * p);
    }
    const double x = 6 * std::log(10.0);
    const double freedom = static_cast<double>(expected.size()) - 1;
    const double spread = 2 * std::sqrt(freedom * x);
    return seen.size() == expected.size() && chi_square >= freedom - spread && chi_square <= freedom + spread + 2 * x;
}

// A generator whose likeliest token follows from the tokens before it, which it records.
class ScriptedGenerator final : public Generator {
public:
    using Script = std::function<int(const std::vector<int>& tokens)>;
    ScriptedGenerator(int capacity, Script next) : capacity_(capacity), next_(std::move(next)) {}
    const std::vector<float>& start(const std::vector<int>& tokens) override {
        tokens_ = tokens;
        return logits();
    }
    const std::vector<float>& step(const std::vector<int>& tokens) override {
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        return logits();
    }
    int length() const override { return static_cast<int>(tokens_.size()); }
    int capacity() const override { return capacity_; }
    std::vector<std::vector<int>> seen;  // before each token

private:
    const std::vector<float>& logits() {
        REQUIRE(length() <= capacity_);
        seen.push_back(tokens_);
        logits_.assign(64, 0.0f);
        logits_[static_cast<size_t>(next_(tokens_))] = 1.0f;
        return logits_;
    }
    int capacity_;
    Script next_;
    std::vector<int> tokens_;
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
    REQUIRE(same_distribution(counts(logits, 1.0f, 0, n), exact(logits, 1.0, all), n));
    REQUIRE(same_distribution(counts(logits, 0.5f, 0, n), exact(logits, 0.5, all), n));
    REQUIRE(same_distribution(counts(logits, 2.0f, 99, n), exact(logits, 2.0, all), n));
    REQUIRE(same_distribution(counts(logits, 1.0f, 3, n), exact(logits, 1.0, {2, 3, 6}), n));
    const std::map<int, int> one = counts(logits, 1.0f, 1, 100);
    REQUIRE(one.size() == 1);
    REQUIRE(one.count(2) == 1);  // the lower of equal logits
    REQUIRE_FALSE(same_distribution(counts(logits, 1.0f, 0, n), exact(logits, 1.1, all), n));
}

// The definition in float64: among the top k tokens, the fewest likeliest whose probabilities sum to top_p or more.
std::map<int, double> exact_top_p(const std::vector<float>& logits, double temperature, size_t top_k, double top_p) {
    std::vector<int> tokens;
    for (size_t i = 0; i < logits.size(); ++i)
        if (std::isfinite(logits[i])) tokens.push_back(static_cast<int>(i));
    std::stable_sort(tokens.begin(), tokens.end(),
                     [&](int a, int b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
    if (top_k > 0 && top_k < tokens.size()) tokens.resize(top_k);
    const std::map<int, double> p = exact(logits, temperature, tokens);
    std::vector<int> kept;
    double sum = 0;
    for (int token : tokens) {
        if (sum >= top_p) break;
        kept.push_back(token);
        sum += p.at(token);
    }
    return exact(logits, temperature, kept);
}

TEST_CASE("generation/sampling: top-p keeps the fewest likeliest tokens whose probabilities sum to it") {
    const std::vector<float> logits = {0.5f, -1.0f, 2.0f, 2.0f, -INFINITY, 0.0f, 1.0f, NAN};
    const int n = 200000;
    for (double temperature : {0.5, 1.0, 2.0})
        for (int top_k : {0, 3, 5})
            for (double top_p : {0.3, 0.5, 0.75, 0.9, 0.999}) {
                INFO(temperature << " " << top_k << " " << top_p);
                const std::map<int, double> expected =
                    exact_top_p(logits, temperature, static_cast<size_t>(top_k), top_p);
                const auto seen = counts(logits, static_cast<float>(temperature), top_k, n, top_p);
                REQUIRE(same_distribution(seen, expected, n));
            }
    // Probabilities 0.36, 0.36, 0.13, 0.08, 0.05, 0.02: 0.75 needs the third token, and 0 keeps the first.
    REQUIRE(counts(logits, 1.0f, 0, n, 0.75).size() == 3);
    REQUIRE(counts(logits, 1.0f, 0, 100, 0).size() == 1);
    REQUIRE_FALSE(same_distribution(counts(logits, 1.0f, 0, n, 0.9), exact_top_p(logits, 1.0, 0, 0.99), n));
}

TEST_CASE("generation/sampling: of equal logits the lower tokens are kept, and top-p's boundaries are exact") {
    const std::vector<float> tied = {1, 3, 2, 2, 2, 0};
    REQUIRE(tokens_of(counts(tied, 1.0f, 2, 1000)) == std::vector<int>{1, 2});
    REQUIRE(tokens_of(counts(tied, 1.0f, 4, 1000)) == std::vector<int>{1, 2, 3, 4});
    for (int kept = 1; kept < 100; ++kept) {
        const std::map<int, int> drawn = counts(std::vector<float>(100, 0.5f), 1.0f, 0, 3000, kept / 100.0);
        INFO("top_p " << kept / 100.0);
        REQUIRE(static_cast<int>(drawn.size()) <= kept);
        REQUIRE(drawn.rbegin()->first == kept - 1);
    }
}

TEST_CASE("generation/sampling: the temperature and top-k come before top-p") {
    const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
    REQUIRE(tokens_of(counts(logits, 1.0f, 0, 1000, 0.55)) == std::vector<int>{0, 1});
    REQUIRE(tokens_of(counts(logits, 0.5f, 0, 1000, 0.53)) == std::vector<int>{0});  // 0.16 of 0.30
    REQUIRE(tokens_of(counts(logits, 1.0f, 2, 1000, 0.55)) == std::vector<int>{0});  // 0.4 of 0.7
}

TEST_CASE("generation/sampling: a token of probability 1e-6 is drawn as often, before and behind a likely one") {
    const auto rare = static_cast<float>(std::log(1e-6));
    const int n = 10'000'000;
    const std::vector<float> logits = {rare, 0.0f, rare};
    REQUIRE(same_distribution(counts(logits, 1.0f, 0, n), exact(logits, 1.0, {0, 1, 2}), n));
}

TEST_CASE("generation/sampling: temperature 0 takes the likeliest token, and large logits do not overflow") {
    Sampler likeliest(0.0f, 50, 1.0f, 1);
    REQUIRE(likeliest.next(std::vector<float>{1.0f, 3.0f, 3.0f}) == 1);
    Sampler hot(0.01f, 0, 1.0f, 1);
    REQUIRE(hot.next(std::vector<float>{3e38f, -3e38f}) == 0);
    REQUIRE_THROWS_AS(hot.next(std::vector<float>{NAN, NAN}), Error);
}

TEST_CASE("generation/sampling: the seed determines the tokens, equally on every machine") {
    auto draw = [](uint64_t seed) {
        Sampler sampler(1.0f, 0, 1.0f, seed);
        std::vector<int> tokens;
        for (int i = 0; i < 8; ++i) tokens.push_back(sampler.next(std::vector<float>(100, 0.0f)));
        return tokens;
    };
    REQUIRE(draw(5) == draw(5));
    REQUIRE(draw(5) != draw(6));
    // The C++ standard defines mt19937_64: with the default seed, its first number is 14514284786278117030.
    REQUIRE(draw(std::mt19937_64::default_seed)[0] == static_cast<int>(14514284786278117030u * 0x1p-64 * 100));
}

TEST_CASE("generation/sampling: a text ends at the limit of tokens or at an end token") {
    ScriptedGenerator generator(10, [](const auto& tokens) { return static_cast<int>(tokens.size() * 7 % 16); });
    std::vector<int> streamed;
    const std::vector<int> text = sample(generator, {1, 2}, greedy(3), {}, 0, [&](int token) {
        streamed.push_back(token);
        return true;
    });
    REQUIRE(text == std::vector<int>{14, 5, 12});
    REQUIRE(streamed == text);
    REQUIRE(sample(generator, {1, 2}, greedy(100), {-1, {3, 12, 5}}, 0) == std::vector<int>{14, 5});
    REQUIRE(sample(generator, {1, 2}, greedy(100), {}, 0, [](int token) { return token != 5; }).size() == 2);
    REQUIRE(sample(generator, std::vector<int>(10, 1), greedy(1), {}, 0) == std::vector<int>{6});
    REQUIRE_THROWS_AS(sample(generator, std::vector<int>(11, 1), greedy(1), {}, 0), UsageError);
}

TEST_CASE("generation/sampling: a text longer than the context continues from the last half of its tokens") {
    for (int capacity : {1, 2, 5, 6}) {
        INFO("capacity " << capacity);
        ScriptedGenerator generator(capacity, [](const auto& tokens) { return tokens.back() + 1; });
        const std::vector<int> text = sample(generator, {3}, greedy(20), {}, 0);
        std::vector<int> expected;
        for (int i = 0; i < 20; ++i) expected.push_back(4 + i);
        REQUIRE(text == expected);
        REQUIRE(generator.seen.size() == 20);
        for (size_t i = 0; i < generator.seen.size(); ++i) {  // consecutive tokens that end before the new one
            const std::vector<int>& seen = generator.seen[i];
            for (size_t j = 0; j < seen.size(); ++j)
                REQUIRE(seen[j] == static_cast<int>(3 + i + j + 1) - static_cast<int>(seen.size()));
            REQUIRE((seen.size() == i + 1 || static_cast<int>(seen.size()) >= (capacity + 1) / 2));
        }
    }
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
