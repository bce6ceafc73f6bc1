// The loss of a model on validation data, as a number, as JSON and in words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/dataset.h"
#include "data/loader.h"
#include "files/json.h"
#include "model/model.h"
#include "runtime/context.h"

namespace teon {

struct EvalResult {
    double loss = 0;  // nats per token, mean
    int64_t tokens = 0;
};

// Computes the mean loss over the first `windows` windows of the loader (not shuffled, made for this rank, of batches
// of B x T), the same windows every time. The ranks share the work. The result is the same on each rank, and its
// batches are summed in the order of one rank.
class Evaluator {
public:
    Evaluator(Model& model, Loader& loader, int B, int T, int64_t windows, Context& context);
    // Waits for the device and allocates nothing on it. Returns nullopt on every rank if the context's give_up returned
    // true on any rank.
    std::optional<EvalResult> run();

private:
    Model& model_;
    Loader& loader_;
    Context& ctx_;
    const int B_, T_;
    const int64_t windows_, rounds_;  // rounds: batches of each rank
    // losses_: of a batch. sums_: this rank's sum of each batch, and whether it aborted. all_: sums_ of all ranks.
    Buffer<float> losses_, sums_, all_;
    Buffer<std::byte> scratch_;
};

// Return an evaluation as JSON (val_loss, val_ppl, val_tokens) and in words. text: the size of the text that its
// tokens stand for; if it is known, val_bytes and val_bits_per_byte are added.
Json evaluation_json(const EvalResult& e, const std::optional<TextSize>& text);
std::string evaluation_text(const EvalResult& e, const std::optional<TextSize>& text);

}  // namespace teon
