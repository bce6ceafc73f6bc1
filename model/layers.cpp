#include "model/layers.h"

#include <algorithm>
#include <cmath>

namespace teon {

DecoderLayers::DecoderLayers(const DecoderConfig& c)
    : width_(c.C),
      attention_width_(c.attention_width()),
      builder_{table_, c.names.transposed},
      embedding_(builder_, c),
      blocks_(make_blocks(builder_, c)),
      final_norm_(builder_, c, c.names.final_norm, {"final norm", Drop::never, /*last=*/true}),
      head_(builder_, c, embedding_.token_row()) {}

std::vector<Block> DecoderLayers::make_blocks(ParamBuilder& b, const DecoderConfig& c) {
    // GPT-2 divides by the square root of the number of branches that add up.
    const float out_std = c.scaled_residual_init ? c.init_std / std::sqrt(2.0f * static_cast<float>(c.L)) : c.init_std;
    std::vector<Block> blocks;
    for (b.layer = 0; b.layer < c.L; ++b.layer) blocks.emplace_back(b, c, out_std);
    b.layer = -1;
    return blocks;
}

ActivationPlan DecoderLayers::plan(const DecoderRun& run, Purpose purpose) {
    ActivationPlan plan(run, purpose);
    Flow flow;
    flow.dstream = plan.gradient("gradient of residual stream", width_);
    flow.dout = plan.gradient("gradient of norm output", std::max(width_, attention_width_));
    embedding_.plan(plan, flow);
    for (Block& block : blocks_) for_each_layer(block, [&](auto& layer) { layer.plan(plan, flow); });
    final_norm_.plan(plan, flow);
    head_.plan(plan, flow);
    plan.set_offsets();
    return plan;
}

double DecoderLayers::flops(int T) const {
    double sum = head_.flops();
    for (const Block& block : blocks_) for_each_layer(block, [&](auto& layer) { sum += layer.flops(T); });
    return sum;
}

double DecoderLayers::recompute_flops(const ActivationPlan& plan, int T) const {
    double sum = 0;
    for (const Block& block : blocks_)
        if (&block != &blocks_.back())
            for_each_layer(block, [&](auto& layer) { sum += layer.recompute_flops(plan, T); });
    return sum;
}

}  // namespace teon
