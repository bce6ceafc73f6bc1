// The optimizer as training sees it: a plan made from the ParamTable alone, and the state and step that follow from it.
// Every method is this one class with a different plan: rows that are updated element by element, and stacks of K
// same-role matrices that are updated together. What the methods are is described in methods.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/step_control.h"
#include "model/param_table.h"
#include "runtime/comm.h"

namespace teon {

enum class Method { adamw, lion, muon, normuon, teon, soap };
enum class Ortho { svd, jordan, you, you6, polar_express };
enum class NsForm { automatic, standard, gram };
template <>
inline constexpr auto kEnumNames<Method> = enum_names<Method>({{Method::adamw, "adamw"},
                                                               {Method::lion, "lion"},
                                                               {Method::muon, "muon"},
                                                               {Method::normuon, "normuon"},
                                                               {Method::teon, "teon"},
                                                               {Method::soap, "soap"}});
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
    float lr = 3e-4f;        // peak; of the stacks
    float adamw_lr = 3e-4f;  // of the rows that are updated element by element
    float weight_decay = 0.1f;
    std::optional<float> adamw_weight_decay;  // of those rows; weight_decay if absent
    // Decay only where the update moves the weight to zero (Chen et al., arXiv 2510.12402).
    bool cautious_weight_decay = false;
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float momentum = 0.95f;
    bool nesterov = false;
    bool shape_scale = true;  // the factor sqrt(m / n) of the slice
    // Instead of it, if not 0: the factor update_rms sqrt(max(m, n)), with which the update of a matrix that is
    // orthogonalized alone has this root mean square (Moonlight, https://arxiv.org/abs/2502.16982, section 2.2).
    float update_rms = 0;
    // NorMuon (Li et al., arXiv 2510.05491), which Method::normuon has in any case: O_k's rows are divided by the root of
    // their mean squares' average with this decay, then O_k is brought back to its size.
    bool neuron_norm = false;
    float neuron_beta2 = 0.95f;
    bool ortho_per_head = false;     // q, k, v: each head's rows are a matrix of their own
    std::map<Role, float> lr_scale;  // factors per role, 1 where absent; weight decay keeps the unscaled learning rate
    Ortho ortho = Ortho::polar_express;
    int ns_steps = 5;
    NsForm ns_form = NsForm::automatic;
    bool ns_aol = false;  // AOL preconditioning (orthogonalize.h)
    // Storage of the Newton-Schulz matrices: float on the host, f16 on a GPU. All values are normalized, so that f16's
    // range suffices; it is as fast as bf16, three bits more exact and its Gram form needs a restart less.
    DType ns_dtype = DType::f16;
    int teon_k = 2;
    int teon_mode = 1;
    std::set<Role> teon_roles = {Role::q, Role::k, Role::v};
    bool teon_rms_match = false;
    bool teon_normalize_slices = false;
    int soap_frequency = 10;   // updates from one computation of the eigenvectors to the next
    int soap_max_dim = 10000;  // sides longer than this are not turned into a basis of eigenvectors
};

// Rows of the table, K same-role matrices of consecutive layers, that are unfolded and orthogonalized as one.
struct Stack {
    Role role;
    std::vector<int> rows;  // indices into ParamTable, in layer order
    int m = 0, n = 0;       // of a slice, as stored: of a head's rows if heads > 1
    int heads = 1;          // blocks of rows of each matrix; the k-th blocks of all matrices are a stack of their own
    int mode = 1;
    NsForm form = NsForm::standard;  // resolved
    double flops = 0;                // of one update, beside what is done element by element
    int K() const { return static_cast<int>(rows.size()); }
};

struct OptimizerPlan {
    std::vector<int> element_rows;  // updated element by element; every row is here or in exactly one stack
    std::vector<Stack> stacks;
    int64_t state_bytes = 0;
    int64_t scratch_bytes = 0;  // workspaces of the stacks' update
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
    int64_t begin, end;
    std::vector<Part> parts;  // of all ranks, in elements of this tensor
    int64_t size() const { return static_cast<int64_t>(rows) * cols; }
};
int64_t elements_of(const std::vector<StateTensor>& tensors);

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
    // One entry per role and pair of consecutive layers with a momentum that is not zero; empty without such. From the
    // eigenvalues of M M^T in float: singular values below 3e-4 of the largest are known only to that order.
    std::vector<Alignment> diagnose(Context& context);
    // The same list of tensors on every rank.
    std::vector<StateTensor> state();
    // Called on all ranks: flat (end - begin) = elements [begin, end) of these tensors of state(), of all ranks, one
    // tensor after the other.
    void collect_state(const std::vector<StateTensor>& tensors, int64_t begin, int64_t end, float* flat,
                       Context& context);
    // Called on all ranks: every master weight = its owner's.
    void collect_masters(ParamStore& params, Context& context);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
