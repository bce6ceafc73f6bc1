#include "train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/integer.h"
#include "files/json.h"
#include "kernels/reduce.h"
#include "runtime/cuda/named_range.h"

namespace teon {

Evaluator::Evaluator(Model& model, Loader& loader, int B, int T, int64_t windows, Context& context)
    : model_(model),
      loader_(loader),
      ctx_(context),
      B_(B),
      T_(T),
      windows_(windows),
      rounds_(ceil_div(windows, int64_t{context.comm->size()} * B)),
      losses_(int64_t{B} * T),
      sums_(rounds_ + 1),
      all_((rounds_ + 1) * context.comm->size()),
      scratch_(static_cast<int64_t>(reduce_scratch_bytes())) {}

std::optional<EvalResult> Evaluator::run() {
    const NamedRange range("evaluation");
    const int64_t ranks = ctx_.comm->size();
    const int64_t rank = ctx_.comm->rank();
    const int64_t each = sums_.size();
    const bool together = model_.params().has_weight_windows();  // whether a forward pass needs all ranks
    zero(sums_.data(), each, ctx_.stream);
    loader_.seek(0);
    for (int64_t round = 0; round < rounds_ && (together || !ctx_.give_up()); ++round) {
        Batch batch = loader_.next(ctx_.stream);
        // Windows of the last batch beyond windows_ are not counted.
        const auto B = static_cast<int>(std::clamp<int64_t>(windows_ - (round * ranks + rank) * B_, 0, B_));
        if (B == 0 && !together) continue;
        if (B > 0) batch.B = B;
        model_.forward(losses_.data(), batch);
        const int64_t n = static_cast<int64_t>(B) * batch.T;
        if (n > 0) reduce_sum(sums_.data() + round, scratch_.data(), losses_.data(), n, false, ctx_.stream);
    }
    const float aborted = ctx_.give_up() ? 1.0f : 0.0f;
    upload(sums_.data() + rounds_, &aborted, 1, ctx_.stream);
    ctx_.comm->all_gather(all_.data(), sums_.data(), each, DType::f32, ctx_.stream);
    ctx_.comm->join(ctx_.stream);
    std::vector<float> by_rank(static_cast<size_t>(all_.size()));
    download(by_rank.data(), all_.data(), all_.size(), ctx_.stream);
    ctx_.stream.synchronize();
    for (int64_t r = 0; r < ranks; ++r)
        if (by_rank[static_cast<size_t>(r * each + rounds_)] != 0) return std::nullopt;
    EvalResult result{0, windows_ * T_};
    for (int64_t round = 0; round < rounds_; ++round)
        for (int64_t r = 0; r < ranks; ++r) result.loss += by_rank[static_cast<size_t>(r * each + round)];
    result.loss /= static_cast<double>(result.tokens);
    return result;
}

namespace {

double bits_per_byte(const EvalResult& e, int64_t bytes) {
    return e.loss / std::numbers::ln2 * static_cast<double>(e.tokens) / static_cast<double>(bytes);
}

}  // namespace

Json evaluation_json(const EvalResult& e, const std::optional<TextSize>& text) {
    Json j = {{"val_loss", e.loss}, {"val_ppl", std::exp(e.loss)}, {"val_tokens", e.tokens}};
    if (text && text->bytes > 0) {
        j["val_bytes"] = text->bytes;
        j["val_bits_per_byte"] = bits_per_byte(e, text->bytes);
    }
    return j;
}

std::string evaluation_text(const EvalResult& e, const std::optional<TextSize>& text) {
    return fmt::format(
        "val loss {:.4f} | perplexity {:.3f} | {} tokens{}", e.loss, std::exp(e.loss), e.tokens,
        text && text->bytes > 0 ? fmt::format(" | {:.4f} bits per byte", bits_per_byte(e, text->bytes)) : "");
}

}  // namespace teon
