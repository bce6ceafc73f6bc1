// --eval-only: loss and multiple-choice accuracy of finished weights.
#pragma once

#include <cstdint>
#include <vector>

#include "data/multiple_choice.h"
#include "model/decoder.h"
#include "plan/options.h"

namespace teon {

struct MultipleChoiceResult {
    int64_t examples = 0;
    int64_t right = 0;             // where the right ending has the largest probability
    int64_t right_normalized = 0;  // where it has the largest probability per token (geometric mean)
    int64_t shortened = 0;         // examples whose context was cut at its beginning to fit the model's
    double accuracy() const { return static_cast<double>(right) / static_cast<double>(examples); }
    double accuracy_normalized() const { return static_cast<double>(right_normalized) / static_cast<double>(examples); }
};

// Each ending is scored by the losses of its tokens behind the context; of equal scores the first wins. The model must
// have been made for `run`. Throws Error if an ending alone does not fit run.T.
MultipleChoiceResult score_multiple_choice(Model& model, const std::vector<MultipleChoice>& examples,
                                           const DecoderRun& run, Context& context);

// Loss and perplexity on --val-data, accuracy on --hellaswag, of the weights of --init-from or of the newest checkpoint
// in --out with --resume, as one line each on standard output; the last line is all of it as JSON, with all digits. The
// model is the one that the checkpoint's config.json describes. Throws UsageError where the data are of another
// tokenizer.
void evaluate_only(const ModelFamily& family, const Options& options);

}  // namespace teon
