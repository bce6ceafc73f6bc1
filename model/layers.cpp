#include "model/layers.h"

#include <cmath>

namespace teon {

DecoderLayers::DecoderLayers(const DecoderConfig& c)
    : width_(c.C),
      builder_{table_, c.names.transposed},
      embedding_(builder_, c),
      blocks_(make_blocks(builder_, c)),
      final_norm_(builder_, c, c.names.final_norm, "final norm"),
      head_(builder_, c, embedding_.token_row()) {}

std::vector<Block> DecoderLayers::make_blocks(ParamBuilder& b, const DecoderConfig& c) {
    // GPT-2 divides by the square root of the number of branches on the residual stream.
    const float out_std = c.scaled_residual_init ? c.init_std / std::sqrt(2.0f * static_cast<float>(c.L)) : c.init_std;
    std::vector<Block> blocks;
    for (b.layer = 0; b.layer < c.L; ++b.layer) blocks.emplace_back(b, c, out_std);
    b.layer = -1;
    return blocks;
}

ActivationPlan DecoderLayers::plan(const DecoderRun& run, Purpose purpose) {
    ActivationPlan plan(run, purpose, static_cast<int>(blocks_.size()));
    Edge x = plan.edge("residual stream", width_, Drop::never, Shared::stream_gradient);
    embedding_.plan(x);
    for (size_t l = 0; l < blocks_.size(); ++l) {
        plan.begin_block(static_cast<int>(l));
        x = blocks_[l].plan(plan, x);
    }
    const Edge normed = plan.edge("final norm", width_, Drop::never, Shared::norm_output_gradient);
    final_norm_.plan(plan, {.in = x, .out = normed});
    head_.plan(plan, normed);
    plan.set_offsets();
    return plan;
}

double DecoderLayers::flops(int T) const {
    double sum = head_.flops();
    for (const Block& block : blocks_) block.for_each([&](auto& layer) { sum += layer.flops(T); });
    return sum;
}

double DecoderLayers::recompute_flops(const ActivationPlan& plan, int T) const {
    double sum = 0;
    for (size_t l = 0; l < blocks_.size(); ++l)
        if (!in_place(plan, l)) blocks_[l].for_each([&](auto& layer) { sum += layer.recompute_flops(plan, T); });
    return sum;
}

}  // namespace teon
