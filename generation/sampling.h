// Sampling text from a model.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "checkpoint/published_model.h"
#include "data/tokenizer.h"
#include "generation/generator.h"
#include "options/sampling_options.h"

namespace teon {

// Draws tokens from softmax(logits / temperature) over the top_k largest logits (of equal logits, the lower tokens
// first) and, of these, over the fewest likeliest tokens whose probabilities sum to top_p or more, but for the rounding
// of double. The same seed gives the same tokens on every machine.
class Sampler {
public:
    Sampler(float temperature, int top_k, double top_p, uint64_t seed)
        : temperature_(temperature), top_k_(top_k), top_p_(top_p), engine_(seed) {}
    // Throws Error if no logit is a finite number.
    int next(std::span<const float> logits);

private:
    void weigh(std::span<const float> logits, int top);
    void keep_top_p(std::span<const float> logits);

    float temperature_;
    int top_k_;
    double top_p_;
    std::mt19937_64 engine_;
    std::vector<int> order_;       // the tokens to choose from, ascending
    std::vector<double> weights_;  // of these tokens; the likeliest has 1
};

// Returns the prompt's tokens: prompt_tokens, or the token that begins texts followed by the encoded prompt. Throws
// UsageError if the tokenizer (nullptr: none) cannot encode the prompt, if there would be no token, or if a token is
// outside the vocabulary.
std::vector<int> prompt_of(const SamplingOptions& options, const Tokenizer* tokenizer, const TextLimits& limits,
                           int vocab_size);

// Samples the tokens that follow the prompt, up to sample_tokens, or up to and including a token that ends texts. The
// generator must have one sequence. When its capacity is full, it begins again with the last half of the tokens, so a
// text may be longer than the context. Calls on_token with each token and stops if it returns false. Throws UsageError
// if the prompt is longer than the generator's capacity.
std::vector<int> sample(Generator& generator, const std::vector<int>& prompt, const SamplingOptions& options,
                        const TextLimits& limits, uint64_t seed, const std::function<bool(int)>& on_token = nullptr);

}  // namespace teon
