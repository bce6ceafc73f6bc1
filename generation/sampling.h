// Sampling text from a model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "generation/generator.h"
#include "options/option_table.h"

namespace teon {

struct SamplingOptions {
    std::string prompt;
    std::vector<int> prompt_tokens;  // instead of prompt; empty: not given
    int sample_tokens = 256;         // maximum; the end of the context or a token that ends texts stops earlier
    float temperature = 1.0f;        // divides logits; 0: always take the likeliest token
    int top_k = 50;                  // sample among the k likeliest tokens; 0: all
};

// Adds --prompt, --prompt-tokens, --sample-tokens, --temperature and --top-k to the table.
void add_sampling_flags(OptionTable& table, SamplingOptions& options);

// Returns the maximum number of tokens of the prompt and its sample.
inline int sample_capacity(const SamplingOptions& o, size_t prompt, int context) {
    const size_t wanted = std::max(prompt, o.prompt_tokens.size()) + static_cast<size_t>(o.sample_tokens);
    return static_cast<int>(std::min(wanted, static_cast<size_t>(context)));
}

// Draws tokens from softmax(logits / temperature) over the top_k largest logits (of equal logits, the lower tokens
// first). The same seed gives the same tokens on every machine.
class Sampler {
public:
    Sampler(float temperature, int top_k, uint64_t seed) : temperature_(temperature), top_k_(top_k), engine_(seed) {}
    // Throws Error if no logit is a finite number.
    int next(std::span<const float> logits);

private:
    float temperature_;
    int top_k_;
    std::mt19937_64 engine_;
    std::vector<int> order_;
    std::vector<double> weights_;
};

// The tokens that begin and end a text. In training data both are the delimiter.
struct TextLimits {
    int begin = -1;        // -1: unknown
    std::vector<int> end;  // any of these ends a text
    bool ends(int token) const { return std::find(end.begin(), end.end(), token) != end.end(); }
};

// Returns the prompt's tokens: prompt_tokens, or the token that begins texts followed by the encoded prompt. Throws
// UsageError if the tokenizer (nullptr: none) cannot encode the prompt, if there would be no token, or if a token is
// outside the vocabulary.
std::vector<int> prompt_of(const SamplingOptions& options, const Tokenizer* tokenizer, const TextLimits& limits,
                           int vocab_size);

// Samples the tokens that follow the prompt, up to sample_tokens or the capacity of the generator (which must have one
// sequence), or up to and including a token that ends texts. Calls on_token with each token and stops if it returns
// false. Throws UsageError if the prompt fills the generator.
std::vector<int> sample(Generator& generator, const std::vector<int>& prompt, const SamplingOptions& options,
                        const TextLimits& limits, uint64_t seed, const std::function<bool(int)>& on_token = nullptr);

}  // namespace teon
