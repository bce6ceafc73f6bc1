// Muon, Teon (Zhang et al., arXiv 2601.23261, algorithm 1) and NorMuon (Li et al., arXiv 2510.05491, algorithm 1): the
// state of one rank's stacks and their update, which is momentum, unfolding, orthogonalization, folding. NorMuon scales
// the update by row.
#pragma once

#include <functional>
#include <vector>

#include "model/param_store.h"
#include "optim/placement.h"
#include "runtime/context.h"

namespace teon {

class StackUpdater {
public:
    // rank: in the placement. References must outlive this object.
    StackUpdater(const ParamStore& params, const ParamTable& table, const OptimizerPlan& plan,
                 const Placement& placement, const OptimizerOptions& options, int rank, const Stream& stream);

    // Collective. Calls exchange(parts) whenever the working weights of `parts` are updated on their ranks. All ranks
    // pass the same parts in the same order.
    void update(ParamStore& params, const StepControl* control,
                const std::function<void(const std::vector<Part>&)>& exchange, Context& context);
    bool update_waits() const { return options_.ortho == Ortho::svd && !plan_.stacks.empty(); }  // for the device
    void check_finite(const Stream& stream) const;  // Optimizer::check_finite

    // The i-th tensor of matrix_state() of a parameter; nullptr if another rank owns it.
    float* state(int param, size_t i) const {
        const std::vector<int64_t>& at = state_at_[static_cast<size_t>(param)];
        return at.empty() ? nullptr : state_.data() + at[i];
    }

private:
    // This rank's stacks of a group, and the kernels' description of each slice. In round r every rank updates its next
    // `chunk` stacks. Their weights are sent to the other ranks while the next round is computed.
    struct Group {
        StackGroup stacks;
        std::vector<std::vector<Part>> updated;  // by round, on all ranks
        Buffer<Slice> slices;
        Buffer<int> nonfinite;     // per unfolding: 1 if its momentum was ever not finite
        bool aligned, by_columns;  // SliceBatch's
        SliceBatch batch(int first_stack, int count) const;
    };
    Group make_group(StackGroup stacks, const ParamStore& params, const Placement& placement, int rank,
                     const Stream& stream) const;
    bool all_aligned(const StackGroup& group) const;
    std::vector<std::vector<Part>> take_stacks_of(int rank, StackGroup& group, const Placement& placement) const;
    std::vector<Slice> slices_of(const StackGroup& group, const ParamStore& params) const;
    template <typename T>
    void update_chunk(const Group& group, int first, int count, ParamStore& params, const StepControl* control,
                      Context& context);

    const ParamTable& table_;
    const OptimizerPlan& plan_;
    const OptimizerOptions& options_;
    OffloadableBuffer<float> state_;              // of this rank's stacks
    std::vector<std::vector<int64_t>> state_at_;  // by parameter: the offsets of its tensors; empty: not of this rank
    std::vector<Group> groups_;
    Buffer<std::byte> scratch_;                        // one chunk of unfoldings, then orthogonalize()'s scratch
    Buffer<float> partial_, scales_, rows_, neurons_;  // of one chunk of slices
};

}  // namespace teon
