// The loss on validation data: of a model as it is, as JSON and in words.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "data/loader.h"
#include "model/model.h"
#include "runtime/context.h"

namespace teon {

struct EvalResult {
    double loss = 0;  // nats per token, mean
    int64_t tokens = 0;
};

// Mean loss over the first `windows` windows of the loader (not shuffled, made for this rank, of batches of B x T), the
// same ones every time. The ranks share the work; the result is the same on each and, batch by batch, in the order of
// one rank.
class Evaluator {
public:
    Evaluator(Model& model, Loader& loader, int B, int T, int64_t windows, Context& context);
    // Allocates nothing on the device; synchronizes. Returns nullopt on every rank if the context's give_up returned
    // true on one.
    std::optional<EvalResult> run();

private:
    Model& model_;
    Loader& loader_;
    Context& ctx_;
    const int B_, T_;
    const int64_t windows_, rounds_;  // rounds: batches of each rank
    // Losses of a batch; this rank's sum of each batch and whether it aborted; those of all ranks.
    Buffer<float> losses_, sums_, all_;
    Buffer<std::byte> scratch_;
};

// An evaluation as JSON (val_loss, val_ppl, val_tokens) and in words; with val_bytes and val_bits_per_byte where it is
// known how many bytes of text its tokens stand for (data/dataset.h).
nlohmann::ordered_json evaluation_json(const EvalResult& e, const std::optional<int64_t>& bytes);
std::string evaluation_text(const EvalResult& e, const std::optional<int64_t>& bytes);

}  // namespace teon
