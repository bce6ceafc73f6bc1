// --eval-only: loss and multiple-choice accuracy of finished weights.
#pragma once

#include <cstdint>
#include <vector>

#include "data/multiple_choice.h"
#include "model/decoder.h"
#include "options/options.h"

namespace teon {

struct MultipleChoiceResult {
    int64_t examples = 0;
    int64_t right = 0;             // examples whose right ending has the largest probability
    int64_t right_normalized = 0;  // examples whose right ending has the largest probability per token (geometric mean)
    int64_t shortened = 0;         // examples whose context was cut at its beginning to fit the model's
    std::vector<std::vector<double>> nats;  // of each example's endings
    double accuracy() const { return static_cast<double>(right) / static_cast<double>(examples); }
    double accuracy_normalized() const { return static_cast<double>(right_normalized) / static_cast<double>(examples); }
};

// Scores each ending by the losses of its tokens after the context; of equal scores the first wins. The model must have
// been made for `run`. Throws Error if an ending alone does not fit run.T.
MultipleChoiceResult score_multiple_choice(Model& model, const std::vector<MultipleChoice>& examples,
                                           const DecoderRun& run, Context& context);

// Prints loss and perplexity on --val-data and accuracy on --hellaswag, one line each, and as the last line all results
// as JSON with all digits. Evaluates the weights of --init-from or, with --resume, of the newest checkpoint in --out;
// the config.json beside the weights describes the model. Throws UsageError if the data were made with a different
// tokenizer.
void evaluate_only(const ModelFamily& family, const Options& options);

}  // namespace teon
