#include "generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace teon {

namespace {

// Orders tokens by their logits, the largest first; of equal logits, the lower token first.
auto likelier(std::span<const float> logits) {
    return [logits](int a, int b) {
        const float of_a = logits[static_cast<size_t>(a)];
        const float of_b = logits[static_cast<size_t>(b)];
        return of_a != of_b ? of_a > of_b : a < b;
    };
}

}  // namespace

void Sampler::weigh(std::span<const float> logits, int top) {
    weights_.clear();
    const double largest = logits[static_cast<size_t>(top)];
    for (int token : order_)
        weights_.push_back(std::exp((double{logits[static_cast<size_t>(token)]} - largest) / temperature_));
}

// Keeps the likeliest tokens of order_, until their weights sum to top_p of all.
void Sampler::keep_top_p(std::span<const float> logits) {
    std::sort(order_.begin(), order_.end(), likelier(logits));
    weigh(logits, order_[0]);
    constexpr double kRounding = 1e-12;  // 0.07 of 100 equal tokens are 7, although 0.07 * 100 > 7 in double
    const double nucleus_weight = (top_p_ - kRounding) * std::accumulate(weights_.begin(), weights_.end(), 0.0);
    size_t kept = 0;
    for (double sum = 0.0; kept < order_.size() && (kept == 0 || sum < nucleus_weight); ++kept) sum += weights_[kept];
    order_.resize(kept);
    std::sort(order_.begin(), order_.end());
}

int Sampler::next(std::span<const float> logits) {
    order_.clear();
    for (int token = 0; token < static_cast<int>(logits.size()); ++token)
        if (std::isfinite(logits[static_cast<size_t>(token)])) order_.push_back(token);
    CHECK(!order_.empty(), "none of the model's {} logits is a finite number; its weights may be damaged",
          logits.size());

    const int top = *std::min_element(order_.begin(), order_.end(), likelier(logits));
    if (temperature_ == 0.0f) return top;
    if (top_k_ > 0 && top_k_ < static_cast<int>(order_.size())) {
        std::nth_element(order_.begin(), order_.begin() + (top_k_ - 1), order_.end(), likelier(logits));
        order_.resize(static_cast<size_t>(top_k_));
        std::sort(order_.begin(), order_.end());  // the order after nth_element differs between libraries
    }
    if (top_p_ < 1) keep_top_p(logits);
    weigh(logits, top);
    const double uniform =
        static_cast<double>(engine_() >> 11) * 0x1p-53;  // the distributions of standard libraries differ
    double remainder = uniform * std::accumulate(weights_.begin(), weights_.end(), 0.0);
    for (size_t i = 0; i < order_.size(); ++i) {
        remainder -= weights_[i];
        if (remainder < 0) return order_[i];
    }
    return top;  // only if rounding leaves a remainder
}

std::vector<int> prompt_of(const SamplingOptions& o, const Tokenizer* tokenizer, const TextLimits& limits,
                           int vocab_size) {
    CHECK_USAGE(o.prompt.empty() || o.prompt_tokens.empty(), "--prompt and --prompt-tokens: give one of them");
    std::vector<int> tokens = o.prompt_tokens;
    if (tokens.empty() && limits.begin >= 0) tokens.push_back(limits.begin);
    if (!o.prompt.empty()) {
        CHECK_USAGE(tokenizer,
                    "--prompt: there is no tokenizer with the weights or data; give --prompt-tokens 1,2,3 "
                    "(or, to ./generate, --tokenizer FOLDER)");
        const std::vector<int> encoded = tokenizer->encode(o.prompt);
        tokens.insert(tokens.end(), encoded.begin(), encoded.end());
    }
    CHECK_USAGE(!tokens.empty(), "--prompt: no token is known to begin texts, so the prompt cannot be empty");
    const int largest = *std::max_element(tokens.begin(), tokens.end());
    CHECK_USAGE(largest < vocab_size, "{}: token {} is outside the model's vocabulary of {}",
                o.prompt_tokens.empty() ? "--prompt" : "--prompt-tokens", largest, vocab_size);
    return tokens;
}

std::vector<int> sample(Generator& generator, const std::vector<int>& prompt, const SamplingOptions& o,
                        const TextLimits& limits, uint64_t seed, const std::function<bool(int)>& on_token) {
    check_prompt_fits(prompt.size(), generator.capacity());
    Sampler sampler(o.temperature, o.top_k, o.top_p, seed);
    std::vector<int> text = prompt;
    const std::vector<float>* logits = &generator.start(prompt);
    const auto sampled = [&] { return static_cast<int>(text.size() - prompt.size()); };
    while (true) {
        const int token = sampler.next(*logits);
        text.push_back(token);
        const bool goes_on = !on_token || on_token(token);
        if (!goes_on || limits.ends(token) || sampled() == o.sample_tokens) break;
        if (generator.length() < generator.capacity())
            logits = &generator.step({token});
        else
            logits = &generator.start({text.end() - (generator.capacity() + 1) / 2, text.end()});
    }
    return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace teon
