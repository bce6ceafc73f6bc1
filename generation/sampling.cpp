#include "generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace teon {

void add_sampling_flags(OptionTable& table, SamplingOptions& o) {
    table.text("--prompt", o.prompt, "TEXT", "beginning of the sampled text").default_text = "nothing";
    table
        .add(
            "--prompt-tokens", "N,...", "the prompt as tokens, which needs no tokenizer", "",
            [&o](const std::string& text) {
                o.prompt_tokens.clear();
                for (const std::string& item : split(text)) {
                    const auto token = parse_number(item);
                    CHECK_USAGE(token && *token == std::floor(*token) && *token >= 0 && *token < 1 << 24,
                                "--prompt-tokens {}: not a token; write whole numbers, e.g. 15496,995", item);
                    o.prompt_tokens.push_back(static_cast<int>(*token));
                }
            },
            [&o] { return nlohmann::json(o.prompt_tokens); })
        .is_list = true;
    table.integer("--sample-tokens", o.sample_tokens, 1, 1 << 20, "tokens to sample, at most");
    table.number("--temperature", o.temperature, 0, 100, "what logits are divided by; 0: always the likeliest token");
    table.integer("--top-k", o.top_k, 0, 1 << 24, "sample among this many of the likeliest tokens; 0: all");
}

int Sampler::next(std::span<const float> logits) {
    order_.clear();
    for (int token = 0; token < static_cast<int>(logits.size()); ++token)
        if (std::isfinite(logits[static_cast<size_t>(token)])) order_.push_back(token);
    CHECK(!order_.empty(), "none of the model's {} logits is a finite number; its weights may be damaged",
          logits.size());
    auto logit = [&](int token) { return logits[static_cast<size_t>(token)]; };
    auto likelier = [&](int a, int b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; };

    const int top = *std::min_element(order_.begin(), order_.end(), likelier);
    if (temperature_ == 0.0f) return top;
    if (top_k_ > 0 && top_k_ < static_cast<int>(order_.size())) {
        std::nth_element(order_.begin(), order_.begin() + (top_k_ - 1), order_.end(), likelier);
        order_.resize(static_cast<size_t>(top_k_));
        std::sort(order_.begin(), order_.end());  // the order after nth_element differs between libraries
    }
    weights_.clear();
    for (int token : order_) weights_.push_back(std::exp((double{logit(token)} - logit(top)) / temperature_));
    const double uniform =
        static_cast<double>(engine_() >> 11) * 0x1p-53;  // the distributions of standard libraries differ
    double left = uniform * std::accumulate(weights_.begin(), weights_.end(), 0.0);
    for (size_t i = 0; i < order_.size(); ++i)
        if ((left -= weights_[i]) < 0) return order_[i];
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
    const int room = generator.capacity() - static_cast<int>(prompt.size());
    CHECK_USAGE(room > 0, "--prompt: its {} tokens fill the context of {}", prompt.size(), generator.capacity());
    Sampler sampler(o.temperature, o.top_k, seed);
    std::vector<int> tokens;
    const std::vector<float>* logits = &generator.start(prompt);
    while (true) {
        const int token = sampler.next(*logits);
        tokens.push_back(token);
        const bool wanted = !on_token || on_token(token);
        if (!wanted || limits.ends(token) || static_cast<int>(tokens.size()) == std::min(room, o.sample_tokens))
            return tokens;
        logits = &generator.step({token});
    }
}

}  // namespace teon
