// The optimizer's interface for training: a plan, which depends only on the ParamTable and the options, and the state
// and step that follow from the plan. All methods use this class and differ in their plans: parameters that are updated
// element by element, and stacks of K matrices of one role that are updated together. methods.h describes the methods.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/step_control.h"
#include "model/param_store.h"
#include "optim/diagnostics.h"
#include "optim/optimizer_options.h"
#include "runtime/cuda/comm.h"

namespace teon {

// A named tensor of optimizer state, for checkpoints. With several ranks, each holds some elements of some tensors.
struct StateTensor {
    std::string name;  // "h.0.attn.q.weight.momentum", "wte.weight.m"
    float* data;       // this rank's elements [begin, end); all elements if there is one rank
    int rows, cols;    // as stored
    int param;         // index in the ParamTable
    int64_t begin, end;
    std::vector<Part> parts;     // the elements of each rank
    bool may_be_absent = false;  // StateShape's
    int64_t size() const { return static_cast<int64_t>(rows) * cols; }
};
int64_t elements_of(const std::vector<StateTensor>& tensors);

class Ownership;

class Optimizer {
public:
    // plan must be made for these parameters and options. The ranks of context.comm divide state and work by the
    // placement.
    Optimizer(const ParamStore& params, const OptimizerPlan& plan, const Placement& placement,
              const OptimizerOptions& options, Context& context);
    Optimizer(const ParamStore& params, const OptimizerOptions& options, Context& context);  // makes plan and placement
    ~Optimizer();
    const OptimizerPlan& plan() const;
    const Ownership& ownership() const;  // of the gradients' sums and, except for Sharding::none, of state and updates

    // Performs one update from the elements of params.sums() that this rank owns. Unless weights have windows, the
    // working weights are equal on all ranks afterwards. In bf16, only the owner updates a master weight. control
    // (device) has the schedule's factor, the clip scale and skip. The work queued on context.stream is the same at
    // every step, so that a graph can capture it.
    void step(ParamStore& params, const StepControl* control, Context& context);
    // Returns whether step() waits for the device, as with Ortho::svd, so that a graph cannot capture it.
    bool step_waits() const;

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
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
