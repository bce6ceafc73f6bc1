// What plan_optimizer() (optimizer.h) leaves to be done by whoever carries the plan out: which stacks are
// orthogonalized in one batch, which rows are updated in one launch, and the constants of each slice's update.
#pragma once

#include <cstdint>
#include <vector>

#include "optim/optimizer.h"
#include "optim/orthogonalize.h"
#include "optim/unfold.h"

namespace teon {

// Newton-Schulz workspaces stay below this, unless a single stack needs more: groups are worked through in chunks.
inline constexpr int64_t kScratchBound = int64_t{256} << 20;

// Stacks of one shape, K, mode, number of heads and form, whatever their role.
struct StackGroup {
    std::vector<int> stacks;  // indices into OptimizerPlan::stacks, in order
    Unfolding unfolding;
    OrthoMethod method;
    int heads;
    int chunk;                                                           // stacks that are orthogonalized together
    int slices(int count) const { return count * heads * unfolding.K; }  // of so many stacks
    MatrixBatch batch(int count) const { return {count * heads, unfolding.rows(), unfolding.cols(), unfolding.ld}; }
};
std::vector<StackGroup> group_stacks(const OptimizerPlan& plan, const OptimizerOptions& options);
int64_t scratch_bytes(const StackGroup& group);  // of one chunk: the unfoldings and orthogonalize()'s scratch

// Rows that follow each other in the flat buffers and are updated alike.
struct ElementRun {
    std::vector<int> rows;
    int64_t offset = 0, size = 0;  // in the flat buffers, gaps between the rows included
    float lr_scale = 1;
    bool decay = false;
};
std::vector<ElementRun> element_runs(const ParamTable& table, const OptimizerPlan& plan,
                                     const OptimizerOptions& options);

// Elements of all state that is kept of a stack, gaps included.
int64_t state_elements(const ParamTable& table, const Stack& stack, const OptimizerOptions& options);

float lr_scale_of(Role role, const OptimizerOptions& options);

bool has_neuron_norm(const OptimizerOptions& options);

// What O_k is multiplied by beside the learning rate: the role's factor, sqrt(m / n) of the whole matrix and the rms
// match. The mean ||O_k||_F^2 of K slices of a semi-orthogonal unfolding is (its short side) / K, that of Muon min(m, n):
// docs/teon.md, "Comparing Muon with Teon". m and n are without padding.
double step_factor(const ParamTable& table, const Stack& stack, const OptimizerOptions& options);

OrthoMethod method_of(const OptimizerOptions& options, NsForm form);
Unfolding unfolding_of(const Stack& stack, const OrthoMethod& method);

}  // namespace teon
