// The optimizer's interface for training: the state and the step that follow from a plan (optimizer_plan.h). All
// methods use this class and differ in their plans: parameters that are updated element by element (methods.h), and
// stacks of K matrices of one role that are updated together (stack_updater.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/step_control.h"
#include "model/param_store.h"
#include "optim/diagnostics.h"
#include "optim/methods.h"
#include "optim/placement.h"
#include "optim/stack_updater.h"

namespace teon {

// A named tensor of optimizer state, for checkpoints. With several ranks, each holds some elements of some tensors.
struct StateTensor {
    std::string name;  // "h.0.attn.q.weight.momentum", "wte.weight.m"
    float* data;       // this rank's elements [begin, end); all elements if there is one rank
    int rows, cols;    // as stored
    int param;         // index in the ParamTable
    int64_t begin, end;
    std::vector<Part> parts;  // the elements of each rank
    int64_t size() const { return static_cast<int64_t>(rows) * cols; }
};
int64_t elements_of(const std::vector<StateTensor>& tensors);

class Optimizer {
public:
    // plan must be made for these parameters and options. The ranks of context.comm divide state and work by the
    // placement.
    Optimizer(const ParamStore& params, const OptimizerPlan& plan, const Placement& placement,
              const OptimizerOptions& options, Context& context);
    Optimizer(const ParamStore& params, const OptimizerOptions& options, Context& context);  // makes plan and placement
    Optimizer(const Optimizer&) = delete;
    Optimizer& operator=(const Optimizer&) = delete;
    const OptimizerPlan& plan() const { return plan_; }
    // Of the gradients' sums and, except for Sharding::none, of state and updates.
    const Placement& placement() const { return reduction_; }

    // Performs one update from the elements of params.sums() that this rank owns. Unless weights have windows, the
    // working weights are equal on all ranks afterwards. In bf16, only the owner updates a master weight. control
    // (device) has the schedule's factor, the clip scale and skip. The work queued on context.stream is the same at
    // every step, so that a graph can capture it.
    void step(ParamStore& params, const StepControl* control, Context& context);
    // Returns whether step() waits for the device, as with Ortho::svd, so that a graph cannot capture it.
    bool step_waits() const { return stacks_.update_waits(); }

    // This and the following functions wait for the device. Throws Error naming the stack if a momentum was ever not
    // finite. Such a stack is not updated (its weights only decay) and does not affect other stacks. Gradients that are
    // not finite do not reach the optimizer (StepControl::skip).
    void check_finite(Context& context);
    // Returns one entry per role and pair of consecutive layers with nonzero momenta. Uses the eigenvalues of M M^T in
    // float, so that singular values below 3e-4 of the largest are accurate only to that order.
    std::vector<Alignment> diagnose(Context& context);
    // The list of tensors is the same on every rank.
    std::vector<StateTensor> state();
    // Collective. flat (end - begin) = elements [begin, end) of the concatenation of these tensors of state(), from all
    // ranks.
    void collect_state(const std::vector<StateTensor>& tensors, int64_t begin, int64_t end, float* flat,
                       Context& context);
    // The master weights, one tensor per parameter, for collect_state().
    std::vector<StateTensor> masters(const ParamStore& params);

private:
    // The part [offset, offset + size) of a run that this rank owns, and its state.
    struct RunState {
        ElementRun run;
        int64_t offset, size;
        std::vector<OffloadableBuffer<float>> state;
    };
    void make_runs(const Part& elements, bool offload, const Stream& stream);
    void update_elements(ParamStore& params, const StepControl* control, const Stream& stream) const;

    const OptimizerOptions options_;
    const ParamTable table_;
    const MethodInfo& info_;
    const OptimizerPlan plan_;
    const bool divided_;                     // among ranks; else every rank updates everything
    const Placement reduction_;              // of the gradients' sums
    const Placement placement_;              // of state and updates
    const int rank_;                         // of this process in placement_
    const std::vector<Part> element_parts_;  // on all ranks
    std::vector<RunState> runs_;
    StackUpdater stacks_;
};

}  // namespace teon
