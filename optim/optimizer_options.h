// The optimizer's options. plan_optimizer() makes a plan from them and the ParamTable, place() the plan's placement on
// ranks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "base/dtype.h"
#include "kernels/optimizers/teon.h"
#include "model/param_table.h"

namespace teon {

enum class Method { adamw, lion, muon, normuon, teon };
enum class Ortho {
    svd,
    jordan,
    you,
    polar_express,
    polar_express_dion,
    polar_express_nanochat,
    polar_express_dao,
    polar_express_timm
};
enum class NsForm { automatic, standard, gram };
// The factor of an m x n matrix's orthogonalized update: sqrt(m / n), as in Teon's paper; sqrt(max(1, m / n)), as in
// Keller Jordan's Muon; update_rms sqrt(max(m, n)), as in Moonlight (https://arxiv.org/abs/2502.16982, section 2.2):
// the update of a matrix that is orthogonalized alone then has this root mean square; or 1.
enum class UpdateScale { spectral, original, rms, none };
// The rate that multiplies the weight decay of orthogonalized matrices: the learning rate, or that times the factors of
// --lr-scale and --update-scale.
enum class DecayAt { base, adjusted };
template <>
inline constexpr auto kEnumNames<Method> = enum_names<Method>({{Method::adamw, "adamw"},
                                                               {Method::lion, "lion"},
                                                               {Method::muon, "muon"},
                                                               {Method::normuon, "normuon"},
                                                               {Method::teon, "teon"}});
template <>
inline constexpr auto kEnumNames<Ortho> = enum_names<Ortho>({{Ortho::svd, "svd"},
                                                             {Ortho::jordan, "jordan"},
                                                             {Ortho::you, "you"},
                                                             {Ortho::polar_express, "polar-express"},
                                                             {Ortho::polar_express_dion, "polar-express-dion"},
                                                             {Ortho::polar_express_nanochat, "polar-express-nanochat"},
                                                             {Ortho::polar_express_dao, "polar-express-dao"},
                                                             {Ortho::polar_express_timm, "polar-express-timm"}});
// NorMuon's neurons: rows, or where a matrix is wider than high its columns, so that means are over the shorter sides.
enum class NeuronAxis { rows, longer };
template <>
inline constexpr auto kEnumNames<NeuronAxis> = enum_names<NeuronAxis>({{NeuronAxis::rows, "rows"},
                                                                       {NeuronAxis::longer, "long"}});
template <>
inline constexpr auto kEnumNames<UpdateScale> = enum_names<UpdateScale>({{UpdateScale::spectral, "spectral"},
                                                                         {UpdateScale::original, "original"},
                                                                         {UpdateScale::rms, "rms"},
                                                                         {UpdateScale::none, "none"}});
template <>
inline constexpr auto kEnumNames<DecayAt> = enum_names<DecayAt>({{DecayAt::base, "base"},
                                                                 {DecayAt::adjusted, "adjusted"}});
template <>
inline constexpr auto kEnumNames<NesterovForm> = enum_names<NesterovForm>(
    {{NesterovForm::usual, "usual"}, {NesterovForm::bias_corrected, "bias-corrected"}, {NesterovForm::ema, "ema"}});
template <>
inline constexpr auto kEnumNames<NsForm> =
    enum_names<NsForm>({{NsForm::automatic, "auto"}, {NsForm::standard, "standard"}, {NsForm::gram, "gram"}});

struct OptimizerOptions {
    Method method = Method::adamw;
    float lr = 3e-4f;        // peak, for the stacks
    float adamw_lr = 3e-4f;  // peak, for the parameters that are updated element by element
    float weight_decay = 0.1f;
    std::optional<float> adamw_weight_decay = {};  // for these parameters; weight_decay if absent
    // Decay only where the update does not move the weight away from zero (Chen et al., arXiv 2510.12402).
    bool cautious_weight_decay = false;
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    DecayAt decay_at = DecayAt::base;
    float momentum = 0.95f;
    float momentum_start = 0.85f;  // of the first of momentum_warmup updates
    int momentum_warmup = 0;
    bool nesterov = false;
    NesterovForm nesterov_form = NesterovForm::usual;
    UpdateScale update_scale = UpdateScale::spectral;
    float update_rms = 0;  // if not 0, the scale is rms
    // NorMuon's normalization (Li et al., arXiv 2510.05491), always on for Method::normuon: divide each row of O_k by
    // the root of the running mean of its squares, with the decay neuron_beta2, then restore the norm of O_k.
    bool neuron_norm = false;
    float neuron_beta2 = 0.95f;
    NeuronAxis neuron_axis = NeuronAxis::rows;
    bool renormalize = false;     // before it, O_k as if its norm was that of a semi-orthogonal matrix
    bool equalize_rows = false;   // before the orthogonalization, each slice's rows to one norm (arXiv 2603.28254)
    bool ortho_per_head = false;  // q, k, v: orthogonalize each head's rows as a separate matrix
    std::map<Role, float> lr_scale = {};  // factor per role, default 1; weight decay uses the unscaled learning rate
    Ortho ortho = Ortho::polar_express;
    int ns_steps = 5;
    NsForm ns_form = NsForm::automatic;
    // Storage of the Newton-Schulz matrices, which plan/run_plan.cpp chooses. All values are normalized, so f16's range
    // suffices. On a GPU it is as fast as bf16, has three more bits, and its Gram form needs one restart less.
    DType ns_dtype = DType::f16;
    int teon_k = 2;
    int teon_mode = 1;
    std::set<Role> teon_roles = {Role::q, Role::k, Role::v};
    bool teon_rms_match = false;
    bool teon_normalize_slices = false;
};

}  // namespace teon
