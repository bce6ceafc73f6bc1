// What a text sampled from a model begins with, and how its tokens are chosen; and the other flags of generate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"

namespace teon {

class OptionTable;
struct ModelFamily;

struct SamplingOptions {
    std::string prompt;
    std::vector<int> prompt_tokens;  // instead of prompt; empty: not given
    int sample_tokens = 256;         // maximum; a token that ends texts stops earlier
    float temperature = 1.0f;        // divides logits; 0: always take the likeliest token
    int top_k = 50;                  // sample among the k likeliest tokens; 0: all
    double top_p = 1;                // of these, among the fewest likeliest whose probabilities sum to this
};

// Adds --prompt, --prompt-tokens, --sample-tokens, --temperature, --top-k and --top-p to the table.
void add_sampling_flags(OptionTable& table, SamplingOptions& options);

// Throws UsageError if the prompt has more tokens than the context.
inline void check_prompt_fits(size_t prompt, int context) {
    CHECK_USAGE(prompt <= static_cast<size_t>(context), "--prompt: its {} tokens are more than the context of {}",
                prompt, context);
}

// Returns the maximum number of tokens of the prompt and its sample that the model sees at once.
inline int sample_capacity(const SamplingOptions& o, size_t prompt, int context) {
    const size_t tokens = std::max(prompt, o.prompt_tokens.size()) + static_cast<size_t>(o.sample_tokens);
    return static_cast<int>(std::min(tokens, static_cast<size_t>(context)));
}

struct GenerateOptions {
    std::string checkpoint, tokenizer;
    SamplingOptions sampling;
    int64_t seed = -1;  // of the first text; -1: a new one
    int samples = 1;
    std::optional<DType> dtype;
    bool as_tokens = false;
};

// Parses argv. Throws UsageError with one line. Returns std::nullopt after --help or --version, which it prints.
std::optional<GenerateOptions> parse_generate_options(const std::vector<ModelFamily>& families, int argc,
                                                      const char* const* argv);

}  // namespace teon
