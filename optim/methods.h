// What an optimizer is, described once: which of two kinds of rule updates what, the state that the rule keeps of each
// parameter by name and shape, its defaults and its flags. Plans, memory, placement on ranks, checkpoints, --help and the
// checks of flags follow from the row in methods.cpp. A new optimizer is a file with its rule, an enumerator
// (optimizer.h) and a row.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "optim/optimizer.h"
#include "optim/placement.h"

namespace teon {

// ---- element by element -------------------------------------------------------------------------

// One launch: n elements that follow each other in all arrays.
struct ElementUpdate {
    float* master;
    bf16* work;  // nullptr in float, where the master weights are the working weights
    std::vector<float*> state;
    const float* grad;
    const StepControl* control;
    int64_t n;
    ElementStep step;
};
// Updates each element by itself: several ranks cut the parameters anywhere.
struct ElementRule {
    std::string_view name;
    std::vector<std::string_view> state;  // a parameter's tensors of its shape, in this order
    void (*update)(const ElementUpdate& u, const OptimizerOptions& options, const Stream& stream);
};
extern const ElementRule kAdamW, kLion;

// ---- whole matrices -----------------------------------------------------------------------------

// A tensor that a rule keeps of a matrix.
struct StateShape {
    std::string_view name;
    int rows, cols;
    int64_t stride() const;  // elements from it to the next tensor: all begin aligned
};

// A rank's part in the update of the plan's stacks: those that it owns.
class MatrixUpdater {
public:
    virtual ~MatrixUpdater() = default;
    // Updates this rank's stacks. Called on all ranks; calls exchange(parts) with the parts, of all ranks, whose new
    // working weights are there: the same parts in the same order on every rank.
    virtual void step(ParamStore& params, const StepControl* control,
                      const std::function<void(const std::vector<Part>&)>& exchange, Context& context) = 0;
    virtual bool step_waits() const = 0;          // Optimizer::step_waits
    virtual void check_finite(Context&) const {}  // Optimizer::check_finite
};
// What it is made from; all of it outlives it.
struct MatrixSetup {
    const ParamTable& table;
    const OptimizerPlan& plan;
    const OptimizerOptions& options;
    const Ownership& ownership;
    float* state;  // of all of this rank's matrices, zero
    // By row of the table: where its tensors begin in state; empty: this rank is not its owner.
    const std::vector<std::vector<int64_t>>& at;
    Context& context;
};
struct MatrixRule {
    const char *what,
        *work;  // what a stack's update is made by and is, in tables: "orthogonalizer", "orthogonalization"
    std::vector<StateShape> (*state)(const OptimizerOptions& options, const ParamRow& row);
    void (*plan)(Stack& stack, const OptimizerOptions& options);  // sets form and flops
    int64_t (*scratch_bytes)(const OptimizerPlan& plan, const OptimizerOptions& options);
    std::string (*describe)(const Stack& stack, const OptimizerOptions& options);  // in a few words
    std::unique_ptr<MatrixUpdater> (*make)(const MatrixSetup& setup);
};
extern const MatrixRule kOrthogonal, kSoap;

// ---- methods ------------------------------------------------------------------------------------

struct MethodInfo {
    Method method;
    const ElementRule* elements;          // updates what is no hidden matrix
    const MatrixRule* matrices;           // updates the hidden matrices; nullptr: `elements` does
    bool stacks;                          // matrices are stacked as the --teon flags say; else each is alone
    float lr, beta1, beta2;               // defaults
    std::vector<std::string_view> flags;  // those that only some methods have
};
const std::vector<MethodInfo>& methods();
const MethodInfo& info_of(Method method);

}  // namespace teon
