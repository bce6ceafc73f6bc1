// The launches that execute an OptimizerPlan: the stacks that are orthogonalized in one batch, the parameters that are
// updated in one launch, and the constants of each slice's update.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/optimizer_options.h"
#include "optim/orthogonalize.h"
#include "optim/unfold.h"

namespace teon {

// Throws UsageError on invalid options (mode outside 1..3, K < 1, a role without matrices, a factor <= 0).
OptimizerPlan plan_optimizer(const ParamTable& table, const OptimizerOptions& options);
std::string plan_table(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options);

// Bound of the Newton-Schulz workspace, unless a single stack needs more. Larger groups are processed in chunks.
inline constexpr int64_t kScratchBound = int64_t{256} << 20;

// Stacks of equal shape, K, mode, number of heads and form, of any role.
struct StackGroup {
    std::vector<int> stacks;  // indices into OptimizerPlan::stacks, in order
    Unfolding unfolding;
    Unfolding logical;  // without padding
    OrthoMethod method;
    int heads;
    int chunk;                                                           // stacks per batch
    int slices(int count) const { return count * heads * unfolding.K; }  // of `count` stacks
    MatrixBatch batch(int count) const {
        return {count * heads, unfolding.rows(), unfolding.cols(), unfolding.ld, logical.by_rows()};
    }
};
// placement: for several ranks (nullptr: one rank). They update a group in a few rounds, to overlap the exchange of
// weights with computation.
std::vector<StackGroup> group_stacks(const OptimizerPlan& plan, const OptimizerOptions& options,
                                     const Placement* placement = nullptr);
int64_t scratch_bytes(const StackGroup& group);  // of one chunk: the unfoldings and orthogonalize()'s scratch

// Consecutive parameters of the flat buffers with the same update.
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

float lr_scale_of(Role role, const OptimizerOptions& options);
UpdateRate rate_of(const ParamRow& row, const OptimizerOptions& options, double lr_scale);

bool has_neuron_norm(const OptimizerOptions& options);

// The factor of O_k in addition to the learning rate: the role's factor, sqrt(m / n) of the whole matrix (or its
// alternatives), and what gives the update of all heads the size that the undivided matrix would have or, with the rms
// match, that Muon's would have, sqrt(min(m, n)) (docs/optimizers.md, "Comparing Muon with Teon"). Padding is excluded.
double update_scale(const Stack& stack, const OptimizerOptions& options);

OrthoMethod method_of(const OptimizerOptions& options, NsForm form);
Unfolding unfolding_of(const Stack& stack, const OrthoMethod& method);

}  // namespace teon
