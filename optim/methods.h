// The description of an optimizer: its rules for single elements and for whole matrices, the name and shape of each
// state tensor, defaults and flags. Plans, memory, placement on ranks, checkpoints, --help and the checks of flags
// derive from its row in methods.cpp. A new optimizer needs a rule, an enumerator (optimizer_options.h) and a row.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/step_control.h"
#include "model/param_store.h"
#include "optim/optimizer_options.h"
#include "runtime/context.h"

namespace teon {

// ---- element by element -------------------------------------------------------------------------

// The arguments of one launch, which updates n consecutive elements of all arrays.
struct ElementUpdate {
    float* master;
    bf16* work;  // ParamStore::work_copy_at
    std::vector<float*> state;
    const float* grad;
    const StepControl* control;
    int64_t n;
    UpdateRate rate;
};
// Updates each element independently, so that parameters can be divided among ranks at any element.
struct ElementRule {
    std::string_view name;
    std::vector<std::string_view> state;  // names of the tensors, each of the parameter's shape
    void (*update)(const ElementUpdate& u, const OptimizerOptions& options, const Stream& stream);
};

// ---- whole matrices -----------------------------------------------------------------------------

// A state tensor of a matrix.
struct StateShape {
    std::string_view name;
    int rows, cols;
    bool may_be_absent = false;  // from checkpoints of version 0.2.0; then zero
    int64_t stride() const;      // elements from this tensor to the next, which is aligned
};

// Updates the stacks of the plan that this rank owns.
class MatrixUpdater {
public:
    virtual ~MatrixUpdater() = default;
    // Collective. Calls exchange(parts) whenever the working weights of `parts` are updated on their ranks. All ranks
    // pass the same parts in the same order.
    virtual void update(ParamStore& params, const StepControl* control,
                        const std::function<void(const std::vector<Part>&)>& exchange, Context& context) = 0;
    virtual bool update_waits() const = 0;        // Optimizer::step_waits
    virtual void check_finite(Context&) const {}  // Optimizer::check_finite
};
class Ownership;
// Arguments of MatrixRule::make. All must outlive the updater.
struct MatrixSetup {
    const ParamTable& table;
    const OptimizerPlan& plan;
    const OptimizerOptions& options;
    const Ownership& ownership;
    const ParamStore& params;
    int rank;      // in the placement
    float* state;  // state of all matrices of this rank, zeroed
    // By parameter: the offsets of its tensors in state; empty if this rank does not own the parameter.
    const std::vector<std::vector<int64_t>>& at;
    Context& context;
};
struct MatrixRule {
    const char *what, *work;  // names of the method and of its work in tables: "orthogonalizer", "orthogonalization"
    std::vector<StateShape> (*state)(const OptimizerOptions& options, const ParamRow& row);
    void (*plan)(Stack& stack, const OptimizerOptions& options);  // sets form and flops
    int64_t (*scratch_bytes)(const OptimizerPlan& plan, const OptimizerOptions& options, const Placement* placement);
    std::string (*describe)(const Stack& stack, const OptimizerOptions& options);  // the method, for tables
    std::unique_ptr<MatrixUpdater> (*make)(const MatrixSetup& setup);
};
template <typename Updater>
std::unique_ptr<MatrixUpdater> make_updater(const MatrixSetup& setup) {
    return std::make_unique<Updater>(setup);
}
extern const MatrixRule kOrthogonal;
extern const MatrixRule kSoap;

// ---- methods ------------------------------------------------------------------------------------

struct MethodInfo {
    Method method;
    const ElementRule* elements;          // updates all parameters except the hidden matrices
    const MatrixRule* matrices;           // updates the hidden matrices; nullptr: `elements` does
    bool stacks;                          // whether the --teon flags stack matrices; otherwise K = 1
    float lr, beta1, beta2;               // defaults
    std::vector<std::string_view> flags;  // the flags that only some methods have
};
const std::vector<MethodInfo>& methods();
const MethodInfo& info_of(Method method);
bool has_flag(const MethodInfo& method, std::string_view flag);

// Returns the default of --adamw-lr for a model of this width: 3e-4 x 3072 / channels, at most 0.01. It falls with the
// width as the rates of GPT-3's models from 125M to 13B do, of which it is 1.5 to 3 times as much (Table 2.1 of
// https://arxiv.org/abs/2005.14165): embeddings and head take a higher rate than matrices. docs/optimizers.md has the
// sweep from which the factor is.
float default_adamw_lr(int channels);

}  // namespace teon
