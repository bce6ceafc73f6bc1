// The optimizer as training sees it: a plan made from the ParamTable alone, and the state and step that follow from it.
// AdamW, Muon and Teon are one class with different plans: rows that AdamW updates, and stacks of K same-role matrices
// that are orthogonalized together. Muon is Teon with K = 1.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/param_table.h"

namespace teon {

enum class Method { adamw, muon, teon };
enum class Ortho { svd, jordan, you, you6, polar_express };
enum class NsForm { automatic, standard, gram };
template <>
inline constexpr auto kEnumNames<Method> =
    enum_names<Method>({{Method::adamw, "adamw"}, {Method::muon, "muon"}, {Method::teon, "teon"}});
template <>
inline constexpr auto kEnumNames<Ortho> = enum_names<Ortho>({{Ortho::svd, "svd"},
                                                             {Ortho::jordan, "jordan"},
                                                             {Ortho::you, "you"},
                                                             {Ortho::you6, "you6"},
                                                             {Ortho::polar_express, "polar-express"}});
template <>
inline constexpr auto kEnumNames<NsForm> =
    enum_names<NsForm>({{NsForm::automatic, "auto"}, {NsForm::standard, "standard"}, {NsForm::gram, "gram"}});

struct OptimizerOptions {
    Method method = Method::adamw;
    float lr = 3e-4f;  // peak; of the stacks (and of AdamW's rows where adamw_lr is not given)
    float adamw_lr = 3e-4f;
    float weight_decay = 0.1f;
    std::optional<float> adamw_weight_decay;  // of AdamW's rows; weight_decay if absent
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float momentum = 0.95f;
    bool nesterov = false;
    bool shape_scale = true;  // the factor sqrt(m / n) of the slice
    // Instead of it, if not 0: the factor update_rms sqrt(max(m, n)), with which the update of a matrix that is
    // orthogonalized alone has this root mean square (Moonlight, https://arxiv.org/abs/2502.16982, section 2.2).
    float update_rms = 0;
    std::map<Role, float> lr_scale;  // factors per role, 1 where absent; weight decay keeps the unscaled learning rate
    Ortho ortho = Ortho::polar_express;
    int ns_steps = 5;
    NsForm ns_form = NsForm::automatic;
    // Storage of the Newton-Schulz matrices: float on the host, f16 on a GPU. All values are normalized, so that f16's
    // range suffices; it is as fast as bf16, three bits more exact and its Gram form needs a restart less.
    DType ns_dtype = DType::f16;
    int teon_k = 2;
    int teon_mode = 1;
    std::set<Role> teon_roles = {Role::q, Role::k, Role::v};
    bool teon_rms_match = false;
    bool teon_normalize_slices = false;
};

// Rows of the table, K same-role matrices of consecutive layers, that are unfolded and orthogonalized as one.
struct Stack {
    Role role;
    std::vector<int> rows;  // indices into ParamTable, in layer order
    int m = 0, n = 0;       // of a slice, as stored
    int mode = 1;
    NsForm form = NsForm::standard;  // resolved
    double flops = 0;                // of one orthogonalization
    int K() const { return static_cast<int>(rows.size()); }
};

struct OptimizerPlan {
    std::vector<int> adamw_rows;  // every row is here or in exactly one stack
    std::vector<Stack> stacks;
    int64_t state_bytes = 0;    // momentum and AdamW moments
    int64_t scratch_bytes = 0;  // Newton-Schulz workspaces: one chunk of stacks at a time (optim/stacks.h)
};

// Throws UsageError on options that fit no stack (mode outside 1..3, K < 1, a role without matrices, a factor <= 0).
OptimizerPlan plan_optimizer(const ParamTable& table, const OptimizerOptions& options);
std::string plan_table(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options);  // as text

// A named flat piece of optimizer state, for checkpoints. Of several ranks each holds some elements of some tensors.
struct StateTensor {
    std::string name;  // "h.0.attn.q.weight.momentum", "wte.weight.m"
    float* data;       // this rank's elements [begin, end); all of them if there is one rank
    int rows, cols;    // as stored
    int param;         // row of the ParamTable
    int slot;          // 0: momentum and first moments, 1: second moments
    int64_t begin, end;
};
inline constexpr int kStateSlots = 2;

// One measurement of --diagnose-every: two consecutive layers of a role.
struct Alignment {
    Role role;
    int layer_a, layer_b;
    float left, right;  // |inner product| of the top left / top right singular vectors of the momenta
    float norm_ratio;   // ||M||_muon,* / ||M||_teon-i,* of the pair
};

class Ownership;

class Optimizer {
public:
    // context.comm's ranks share state and work (optim/placement.h).
    Optimizer(const ParamStore& params, const OptimizerOptions& options, Context& context);
    ~Optimizer();
    const OptimizerPlan& plan() const;
    const Ownership& ownership() const;

    // One update from params.grad, of which the elements that this rank owns count; the working weights are then the
    // same on every rank. In bf16 a rank's master weights stay behind where it is not their owner (collect_masters).
    // Obeys control (device): the schedule's factor, clip scale, skip. What it queues on context.stream is the same at
    // every step, so that a graph may hold it.
    void step(ParamStore& params, const StepControl* control, Context& context);
    // step() waits for the device, as singular values of Ortho::svd do: no graph can hold it.
    bool step_waits() const;

    // Off the hot path; all of them wait for the device.
    // Throws Error naming the stack if a momentum was ever not finite. Such a stack is left out of the update (its
    // weights only decay) and no other one is affected; gradients that are not finite never get here
    // (StepControl::skip).
    void check_finite(Context& context);
    // One entry per role and pair of consecutive layers with a momentum that is not zero; empty for AdamW. From the
    // eigenvalues of M M^T in float: singular values below 3e-4 of the largest are known only to that order.
    std::vector<Alignment> diagnose(Context& context);
    // The same list of tensors on every rank.
    std::vector<StateTensor> state();
    // Called on all ranks: flat (table size, laid out as the parameters) = a slot of all ranks' state, where the slot
    // has any.
    void collect_state(int slot, float* flat, Context& context);
    // Called on all ranks: every master weight = its owner's.
    void collect_masters(ParamStore& params, Context& context);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
