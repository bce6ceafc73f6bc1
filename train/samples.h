// Text sampled from a model in training, for the console and the run's samples.txt.
#pragma once

#include <memory>
#include <string>

#include "generation/sampling.h"

namespace teon {

// tokenizer: the folder beside the data; if it does not exist, samples are token numbers. Throws UsageError if the
// prompt cannot be encoded, does not fit, or has a token outside the model's vocabulary. Needs no device.
void check_prompt(const std::string& tokenizer, const DecoderConfig& config, const SamplingOptions& options,
                  int delimiter);

class Samples {
public:
    // params and context must outlive this object. Throws what check_prompt() throws.
    Samples(const std::string& run_folder, const std::string& tokenizer, const DecoderConfig& config,
            const ParamStore& params, const SamplingOptions& options, int delimiter, uint64_t seed, Context& context);

    // Samples with the current weights and the same seed each time, so that texts of different steps compare. Appends
    // "step N", the text and a blank line to samples.txt. Returns the text, prompt included. If the context's give_up
    // returned true, returns an empty string and writes nothing.
    std::string write(int64_t step);

private:
    const std::string path_;
    const SamplingOptions options_;
    const TextLimits limits_;
    const uint64_t seed_;
    Context& ctx_;
    std::unique_ptr<Tokenizer> tokenizer_;
    std::vector<int> prompt_;
    std::unique_ptr<Generator> generator_;
};

}  // namespace teon
