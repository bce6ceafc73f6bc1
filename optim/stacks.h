// What plan_optimizer() (optimizer.h) leaves to be done by whoever carries the plan out: which stacks are
// orthogonalized in one batch, which rows AdamW updates in one launch, and the constants of each slice's update.
#pragma once

#include <cstdint>
#include <vector>

#include "optim/optimizer.h"
#include "optim/orthogonalize.h"
#include "optim/unfold.h"

namespace teon {

// Newton-Schulz workspaces stay below this, unless a single stack needs more: groups are worked through in chunks.
inline constexpr int64_t kScratchBound = int64_t{256} << 20;

// Stacks of one shape, K, mode and form, whatever their role.
struct StackGroup {
    std::vector<int> stacks;  // indices into OptimizerPlan::stacks, in order
    Unfolding unfolding;
    OrthoMethod method;
    int chunk;  // stacks that are orthogonalized together
    int slices() const { return static_cast<int>(stacks.size()) * unfolding.K; }
    MatrixBatch batch(int count) const { return {count, unfolding.rows(), unfolding.cols(), unfolding.ld}; }
};
std::vector<StackGroup> group_stacks(const OptimizerPlan& plan, const OptimizerOptions& options);
int64_t scratch_bytes(const StackGroup& group);  // of one chunk: the unfoldings and orthogonalize()'s scratch

// Rows that follow each other in the flat buffers and are updated alike.
struct AdamwRun {
    std::vector<int> rows;
    int64_t offset = 0, size = 0;  // in the flat buffers, gaps between the rows included
    float lr_scale = 1;
    bool decay = false;
};
std::vector<AdamwRun> adamw_runs(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options);

// Elements from one slice's momentum to the next.
int64_t momentum_stride(int m, int n);

// What O_k is multiplied by beside the learning rate: the role's factor, sqrt(m / n) and the rms match. The mean
// ||O_k||_F^2 of K slices of a semi-orthogonal unfolding is (its short side) / K, that of Muon min(m, n): docs/teon.md,
// "Comparing Muon with Teon". m and n are the slice's without padding.
double step_factor(const ParamTable& table, const Stack& stack, const OptimizerOptions& options);

}  // namespace teon
