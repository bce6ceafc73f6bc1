#include "train/samples.h"

#include <fmt/core.h>

#include "base/text.h"
#include "files/file.h"

namespace teon {

namespace {

TextLimits limits_of(int delimiter) {
    if (delimiter < 0) return {};
    return {delimiter, {delimiter}};
}

std::vector<int> fitting_prompt(const Tokenizer* tokenizer, const DecoderConfig& config, const SamplingOptions& options,
                                int delimiter) {
    std::vector<int> prompt = prompt_of(options, tokenizer, limits_of(delimiter), config.V);
    check_prompt_fits(prompt.size(), config.max_T);
    return prompt;
}

}  // namespace

void check_prompt(const std::string& tokenizer, const DecoderConfig& config, const SamplingOptions& options,
                  int delimiter) {
    const auto opened = is_folder(tokenizer) ? std::make_unique<Tokenizer>(tokenizer) : nullptr;
    fitting_prompt(opened.get(), config, options, delimiter);
}

Samples::Samples(const std::string& run_folder, const std::string& tokenizer, const DecoderConfig& config,
                 const ParamStore& params, const SamplingOptions& options, int delimiter, uint64_t seed,
                 Context& context)
    : path_(run_folder + "/samples.txt"), options_(options), limits_(limits_of(delimiter)), seed_(seed), ctx_(context) {
    if (is_folder(tokenizer)) tokenizer_ = std::make_unique<Tokenizer>(tokenizer);
    prompt_ = fitting_prompt(tokenizer_.get(), config, options, delimiter);
    const int capacity = sample_capacity(options_, prompt_.size(), config.max_T);
    generator_ = make_generator(config, params, 1, capacity, context);
}

std::string Samples::write(int64_t step) {
    const auto go_on = [&](int) { return !ctx_.give_up(); };
    std::vector<int> tokens = sample(*generator_, prompt_, options_, limits_, seed_, go_on);
    if (ctx_.give_up()) return "";
    if (limits_.ends(tokens.back())) tokens.pop_back();
    tokens.insert(tokens.begin(), prompt_.begin() + (prompt_[0] == limits_.begin), prompt_.end());
    const std::string text = tokenizer_ ? tokenizer_->decode(tokens) : joined(tokens, " ");
    const std::string entry = fmt::format("step {}\n{}\n\n", step, text);
    write_all(open_for_append(path_), entry.data(), entry.size(), path_);
    return text;
}

}  // namespace teon
