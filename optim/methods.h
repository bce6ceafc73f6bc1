// The description of an optimizer: its rule for single elements, whether it orthogonalizes the hidden matrices, and its
// defaults. Plans, memory, placement on ranks, checkpoints and --help derive from its row in methods.cpp. A new
// optimizer needs a rule, an enumerator (optimizer_options.h) and a row.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/step_control.h"
#include "optim/optimizer_options.h"

namespace teon {

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

struct MethodInfo {
    Method method;
    const ElementRule* elements;  // updates all parameters that are not orthogonalized
    bool orthogonalizes;          // the hidden matrices (stack_updater.h)
    bool stacks;                  // whether the --teon flags stack matrices; otherwise K = 1
    float lr, beta1, beta2;       // defaults
};
const std::vector<MethodInfo>& methods();
const MethodInfo& info_of(Method method);

// Returns the default of --adamw-lr for a model of this width: 3e-4 x 3072 / channels, at most 0.01. It falls with the
// width as the rates of GPT-3's models from 125M to 13B do, of which it is 1.5 to 3 times as much (Table 2.1 of
// https://arxiv.org/abs/2005.14165): embeddings and head take a higher rate than matrices. docs/optimizers.md has the
// sweep from which the factor is.
float default_adamw_lr(int channels);

}  // namespace teon
