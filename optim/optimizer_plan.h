// The optimizer's plan: which parameters are updated element by element and which in stacks. It depends only on the
// ParamTable and the options, so that --plan-only and every rank make the same one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/stacks.h"

namespace teon {

struct OptimizerPlan {
    std::vector<int> element_params;  // updated element by element; every other parameter is in exactly one stack
    std::vector<Stack> stacks;
    int64_t state_bytes = 0;
    int64_t scratch_bytes = 0;  // workspaces of the stacks' update
};
// Throws UsageError on invalid options (mode outside 1..3, K < 1, a role without matrices, a factor <= 0).
OptimizerPlan plan_optimizer(const ParamTable& table, const OptimizerOptions& options);
std::string plan_table(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options);

// Consecutive parameters of the flat buffers with the same update, in one launch.
struct ElementRun {
    std::vector<int> params;
    int64_t offset = 0, size = 0;  // in the flat buffers, including gaps between the parameters
    int64_t begin = 0;             // among the elements of all runs; equal to offset modulo kParamAlignment
    float lr_scale = 1;
    bool decay = false;
};
std::vector<ElementRun> element_runs(const ParamTable& table, const OptimizerPlan& plan,
                                     const OptimizerOptions& options);

// Elements of a stack's state, including alignment gaps.
int64_t state_elements(const ParamTable& table, const Stack& stack, const OptimizerOptions& options);

}  // namespace teon
