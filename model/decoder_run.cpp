#include "model/decoder_run.h"

#include <fmt/core.h>

namespace teon {

std::vector<RecomputePlan> recompute_plans(int blocks) {
    std::vector<RecomputePlan> plans = {Recompute::none};
    for (int n = 1; n < blocks; ++n) plans.emplace_back(Recompute::none, Recompute::cheap, n);
    plans.emplace_back(Recompute::cheap);
    for (int n = 1; n < blocks; ++n) plans.emplace_back(Recompute::cheap, Recompute::block, n);
    plans.emplace_back(Recompute::block);
    return plans;
}

std::string text(const RecomputePlan& plan) {
    const std::string others(name_of(plan.others));
    if (plan.first_blocks == 0) return others;
    return fmt::format("{}, {} in the first {} block{}", others, name_of(plan.first), plan.first_blocks,
                       plan.first_blocks == 1 ? "" : "s");
}

}  // namespace teon
