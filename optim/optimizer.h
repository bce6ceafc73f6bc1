// The optimizer's interface for training: a plan that depends only on the ParamTable and the options, and the state and
// step that follow from the plan. Every method is this class with another plan: rows that are updated element by
// element, and stacks of K matrices of one role that are updated together. methods.h describes the methods.
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
    float lr = 3e-4f;        // peak, of the stacks
    float adamw_lr = 3e-4f;  // peak, of the rows that are updated element by element
    float weight_decay = 0.1f;
    std::optional<float> adamw_weight_decay;  // of these rows; weight_decay if absent
    // Decay only where the update does not move the weight away from zero (Chen et al., arXiv 2510.12402).
    bool cautious_weight_decay = false;
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float momentum = 0.95f;
    bool nesterov = false;
    bool shape_scale = true;  // the factor sqrt(m / n) of the slice
    // If not 0, replaces it by update_rms sqrt(max(m, n)): the update of a matrix that is orthogonalized alone then has
    // this root mean square (Moonlight, https://arxiv.org/abs/2502.16982, section 2.2).
    float update_rms = 0;
    // NorMuon's normalization (Li et al., arXiv 2510.05491), always on for Method::normuon: divide each row of O_k by
    // the root of the running mean of its squares, with the decay neuron_beta2, then restore the norm of O_k.
    bool neuron_norm = false;
    float neuron_beta2 = 0.95f;
    bool ortho_per_head = false;     // q, k, v: orthogonalize each head's rows as a separate matrix
    std::map<Role, float> lr_scale;  // factor per role, default 1; weight decay uses the unscaled learning rate
    Ortho ortho = Ortho::polar_express;
    int ns_steps = 5;
    NsForm ns_form = NsForm::automatic;
    bool ns_aol = false;  // AOL preconditioning (orthogonalize.h)
    // Storage of the Newton-Schulz matrices: float on the host, f16 on a GPU. All values are normalized, so f16's range
    // suffices. It is as fast as bf16, has three more bits, and its Gram form needs one restart less.
    DType ns_dtype = DType::f16;
    int teon_k = 2;
    int teon_mode = 1;
    std::set<Role> teon_roles = {Role::q, Role::k, Role::v};
    bool teon_rms_match = false;
    bool teon_normalize_slices = false;
    int soap_frequency = 10;   // updates between computations of the eigenvectors
    int soap_max_dim = 10000;  // longer sides have no basis of eigenvectors
};

// K rows of the table, matrices of one role in consecutive layers, that are unfolded and orthogonalized as one matrix.
struct Stack {
    Role role;
    std::vector<int> rows;  // indices into ParamTable, in layer order
    int m = 0, n = 0;       // shape of a slice as stored; with heads > 1, of one head's rows
    int heads = 1;          // row blocks of each matrix; the h-th blocks of all matrices are orthogonalized together
    int mode = 1;
    NsForm form = NsForm::standard;  // resolved
    double flops = 0;                // of one update, without the elementwise work
    int K() const { return static_cast<int>(rows.size()); }
};

struct OptimizerPlan {
    std::vector<int> element_rows;  // updated element by element; every other row is in exactly one stack
    std::vector<Stack> stacks;
    int64_t state_bytes = 0;
    int64_t scratch_bytes = 0;  // workspaces of the stacks' update
};

// Throws UsageError on invalid options (mode outside 1..3, K < 1, a role without matrices, a factor <= 0).
OptimizerPlan plan_optimizer(const ParamTable& table, const OptimizerOptions& options);
std::string plan_table(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options);  // as text

// A named tensor of optimizer state, for checkpoints. With several ranks each holds some elements of some tensors.
struct StateTensor {
    std::string name;  // "h.0.attn.q.weight.momentum", "wte.weight.m"
    float* data;       // this rank's elements [begin, end); all elements if there is one rank
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
struct Placement;

class Optimizer {
public:
    // The plan of these options for these parameters. The ranks of context.comm divide state and work by the placement.
    Optimizer(const ParamStore& params, const OptimizerPlan& plan, const Placement& placement,
              const OptimizerOptions& options, Context& context);
    Optimizer(const ParamStore& params, const OptimizerOptions& options, Context& context);  // makes both
    ~Optimizer();
    const OptimizerPlan& plan() const;
    const Ownership& ownership() const;

    // One update from the elements of params.grad that this rank owns. Afterwards the working weights are equal on all
    // ranks. In bf16 only the owner updates a master weight (collect_masters). control (device) has the schedule's
    // factor, the clip scale and skip. The work queued on context.stream is the same at every step, so a graph can hold
    // it.
    void step(ParamStore& params, const StepControl* control, Context& context);
    // Whether step() waits for the device, as Ortho::svd does, so that no graph can hold it.
    bool step_waits() const;

    // The following functions wait for the device. Throws Error naming the stack if a momentum was ever not finite.
    // Such a stack is not updated (its weights only decay) and does not affect the others. Gradients that are not
    // finite never get here (StepControl::skip).
    void check_finite(Context& context);
    // One entry per role and pair of consecutive layers with nonzero momenta. Uses the eigenvalues of M M^T in float,
    // so singular values below 3e-4 of the largest are known only to that order.
    std::vector<Alignment> diagnose(Context& context);
    // The list of tensors is the same on every rank.
    std::vector<StateTensor> state();
    // Collective: flat (end - begin) = elements [begin, end) of these tensors of state(), of all ranks, one tensor
    // after the other.
    void collect_state(const std::vector<StateTensor>& tensors, int64_t begin, int64_t end, float* flat,
                       Context& context);
    // Collective: sets every master weight to its owner's.
    void collect_masters(ParamStore& params, Context& context);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
