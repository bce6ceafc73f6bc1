#include "options/optimizer_flags.h"

#include <fmt/core.h>

#include <map>

#include "base/text.h"
#include "files/json.h"
#include "optim/methods.h"
#include "optim/stacks.h"
#include "options/likes.h"

namespace teon {

namespace {

// Returns the names of an enum's values for which `which` is true.
template <typename E>
std::vector<std::string> names_where(bool (*which)(E)) {
    std::vector<std::string> names;
    for (const auto& [value, name] : kEnumNames<E>)
        if (which(value)) names.emplace_back(name);
    return names;
}

Role parse_role(const std::string& flag, const std::string& text, bool (*which)(Role)) {
    for (const auto& [role, name] : kEnumNames<Role>)
        if (name == lower_case(text) && which(role)) return role;
    throw UsageError(fmt::format("{} {}: not a role; there are {}", flag, text, joined(names_where(which), ", ")));
}

// Whether --lr-scale accepts the role.
bool has_lr_scale(Role role) { return role != Role::norm && role != Role::bias; }

// Returns the text of a default that depends on the method: "5e-3 muon, ...".
template <typename F>
std::string by_method(F value) {
    std::map<float, std::vector<std::string_view>> names;
    for (const MethodInfo& m : methods()) names[value(m)].push_back(name_of(m.method));
    if (names.size() == 1) return fmt::format("{}", as_written(names.begin()->first));
    std::vector<std::string> texts;
    for (const auto& [x, of] : names) texts.push_back(fmt::format("{} {}", as_written(x), joined(of, ", ")));
    return joined(texts, "; ");
}

// The optimizers that have a flag.
bool has_adamw(const MethodInfo& m) { return m.elements->name == "adamw"; }
bool orthogonalizes(const MethodInfo& m) { return m.orthogonalizes; }
bool stacks(const MethodInfo& m) { return m.stacks; }

void add_momentum_flags(OptionTable& t, OptimizerOptions& opt) {
    t.number("--momentum", opt.momentum, 0, 0.999999, "momentum of the matrices that are orthogonalized")
        .of(orthogonalizes);
    t.integer("--momentum-warmup", opt.momentum_warmup, 0, 1'000'000'000,
              "updates in which the momentum rises linearly from --momentum-start to --momentum")
        .of(orthogonalizes);
    t.number("--momentum-start", opt.momentum_start, 0, 0.999999, "momentum of the first of these updates")
        .of(orthogonalizes)
        .need("--momentum-warmup");
    t.toggle("--nesterov", opt.nesterov, "orthogonalize gradient + momentum * M instead of M").of(orthogonalizes);
    t.choice("--nesterov-form", opt.nesterov_form,
             "weight of M beside the gradient: the momentum; that with both divided by their bias, as in optax; or "
             "1 - momentum, which adds the average, as in heavyball")
        .of(orthogonalizes)
        .need("--nesterov");
}

void add_scale_flags(OptionTable& t, OptimizerOptions& opt) {
    t.choice("--update-scale", opt.update_scale,
             "factor of a hidden matrix's update: sqrt(rows / columns), Teon's; sqrt(max(1, rows / columns)), Keller "
             "Jordan's; --update-rms times sqrt(max(rows, columns)), Moonlight's; or 1")
        .of(orthogonalizes)
        .get = [&opt] { return Json(name_of(scale_of(opt))); };
    t.number("--update-rms", opt.update_rms, 0, 10,
             "root mean square of a hidden matrix's update before the learning rate; implies --update-scale rms; 0.2 "
             "is AdamW's size, with AdamW's learning rate")
        .of(orthogonalizes)
        .follows([&opt] { opt.update_rms = opt.update_scale == UpdateScale::rms ? 0.2f : 0.0f; })
        .default_text = "0.2 with --update-scale rms, else 0";
}

void add_update_flags(OptionTable& t, OptimizerOptions& opt, Options& o) {
    t.group("Optimizer");
    t.choice("--optimizer", opt.method,
             "adamw and lion update all parameters; the others the hidden matrices, and AdamW the rest");
    std::vector<std::string> names;
    for (const Like& like : likes()) names.emplace_back(like.name);
    t.name("--like", o.like, names,
           "sets the flags with which the updates of hidden matrices are those of another program, but those that are "
           "given here; the plan lists them")
        .of(orthogonalizes)
        .fixed = false;  // the flags that it sets are compared
    t.number("--lr", opt.lr, 0, 100, "peak learning rate")
        .follows([&opt] { opt.lr = info_of(opt.method).lr; })
        .default_text = by_method([](const MethodInfo& m) { return m.lr; });
    t.number("--adamw-lr", o.adamw_lr, 0, 100,
             "peak learning rate of what AdamW updates beside another optimizer: embeddings, head, norms and biases")
        .of(orthogonalizes)
        .follows([&] {  // by the model's width, which plan_run() knows
            o.adamw_lr.reset();
            if (!info_of(opt.method).orthogonalizes) o.adamw_lr = opt.lr;
        })
        .default_text = "3e-4 x 3072 / channels, at most 0.01";
    t.number("--weight-decay", opt.weight_decay, 0, 10,
             "decoupled weight decay, of matrices and embeddings, never of norms and biases");
    t.number("--adamw-weight-decay", opt.adamw_weight_decay, 0, 10,
             "weight decay of what AdamW updates beside another optimizer")
        .of(orthogonalizes)
        .follows([&opt] { opt.adamw_weight_decay = opt.weight_decay; })
        .default_text = "= weight-decay";
    t.toggle("--cautious-weight-decay", opt.cautious_weight_decay, "decay only weights that the update moves to zero");
    t.number("--grad-clip", o.grad_clip, 0, 1e9, "largest global gradient norm; 0: no clipping");
    t.number("--beta1", opt.beta1, 0, 0.999999,
             "decay of AdamW's first moment; for Lion, the weight of the momentum in the update")
        .follows([&opt] { opt.beta1 = info_of(opt.method).beta1; })
        .default_text = by_method([](const MethodInfo& m) { return m.beta1; });
    t.number("--beta2", opt.beta2, 0, 0.999999, "decay of AdamW's second moment; for Lion, of the momentum")
        .follows([&opt] { opt.beta2 = info_of(opt.method).beta2; })
        .default_text = by_method([](const MethodInfo& m) { return m.beta2; });
    t.number("--eps", opt.eps, 1e-30, 1, "AdamW's epsilon").of(has_adamw).default_text = "1e-8";
    t.choice("--decay-at", opt.decay_at,
             "weight decay of the hidden matrices at the learning rate, or at that times their factors of --lr-scale "
             "and --update-scale")
        .of(orthogonalizes);
    add_momentum_flags(t, opt);
    add_scale_flags(t, opt);
    t.toggle("--neuron-norm", opt.neuron_norm,
             "NorMuon's normalization of each neuron's update, on Muon's and on Teon's matrices; normuon always has it")
        .of(orthogonalizes);
    t.number("--neuron-beta2", opt.neuron_beta2, 0, 0.999999, "decay of the neurons' second moments")
        .of(orthogonalizes)
        .need("--neuron-norm")
        .need("--optimizer", {"normuon"});
    t.choice("--neuron-axis", opt.neuron_axis,
             "neurons are rows, or in matrices that are wider than high columns, as in nanochat")
        .of(orthogonalizes)
        .need("--neuron-norm")
        .need("--optimizer", {"normuon"});
    t.toggle("--renormalize", opt.renormalize,
             "before NorMuon's normalization, scale the update to the norm of a semi-orthogonal matrix (Muon+)")
        .of(orthogonalizes)
        .need("--neuron-norm")
        .need("--optimizer", {"normuon"});
    t.toggle("--equalize-rows", opt.equalize_rows, "orthogonalize rows of equal norm (MuonEq)").of(orthogonalizes);
    t.add(
         "--lr-scale", "ROLE=X,...",
         fmt::format("factors of the learning rate per role, e.g. q=0.707,k=0.707,v=0.707; there are {}; norms and "
                     "biases always have 1, and weight decay keeps the unscaled rate",
                     joined(names_where(has_lr_scale), ", ")),
         "",
         [&opt](const std::string& text) {
             for (const std::string& item : split(text)) {
                 size_t equals = item.find('=');
                 CHECK_USAGE(equals != std::string::npos, "--lr-scale {}: write role=factor, e.g. q=0.5", item);
                 auto factor = parse_number(item.substr(equals + 1));
                 CHECK_USAGE(factor && *factor > 0 && *factor <= 1e4,
                             "--lr-scale {}: the factor must be above 0 and at most 1e4", item);
                 opt.lr_scale[parse_role("--lr-scale", item.substr(0, equals), has_lr_scale)] =
                     static_cast<float>(*factor);
             }
         },
         [&opt] {
             Json j = Json::object();
             for (auto [role, factor] : opt.lr_scale) j[std::string(name_of(role))] = as_written(factor);
             return j;
         })
        .is_list = true;
}

void add_orthogonalizer_flags(OptionTable& t, OptimizerOptions& opt, Options& o) {
    t.group("Orthogonalizer", true, orthogonalizes);
    const auto newton_schulz = names_where<Ortho>([](Ortho ortho) { return ortho != Ortho::svd; });
    t.choice("--ortho", opt.ortho, "exact polar factor, or a Newton-Schulz coefficient set");
    t.toggle("--ortho-per-head", opt.ortho_per_head, "orthogonalize the q, k and v of each attention head by itself");
    t.integer("--ns-steps", opt.ns_steps, 1, 100, "Newton-Schulz steps").need("--ortho", newton_schulz);
    t.choice("--ns-form", opt.ns_form, "iterate on the matrix or on its Gram matrix; auto: by aspect ratio")
        .need("--ortho", newton_schulz);
    t.choice("--ns-dtype", o.ns_dtype,
             {{"auto", std::nullopt}, {"float", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}},
             "type of the Newton-Schulz matrices; auto: f16 on a GPU, bf16 beside --dtype bf16 on a CPU that "
             "multiplies it in hardware, else float")
        .need("--ortho", newton_schulz);
}

void add_teon_flags(OptionTable& t, OptimizerOptions& opt) {
    t.group("Teon", true, stacks);
    t.integer("--teon-k", opt.teon_k, 1, 1024, "consecutive layers per stack");
    t.integer("--teon-mode", opt.teon_mode, 1, 3, "unfolding of the stack");
    t.add(
         "--teon-roles", "ROLE,...", "matrices that are stacked; the others are Muon's", "q,k,v",
         [&opt](const std::string& text) {
             opt.teon_roles.clear();
             for (const std::string& item : split(text))
                 opt.teon_roles.insert(parse_role("--teon-roles", item, is_hidden_matrix));
         },
         [&opt] {
             Json j = Json::array();
             for (Role role : opt.teon_roles) j.push_back(name_of(role));
             return j;
         })
        .is_list = true;
    t.toggle("--teon-rms-match", opt.teon_rms_match, "scale a stack's updates to the size that Muon's would have");
    t.toggle("--teon-normalize-slices", opt.teon_normalize_slices, "divide each slice by its norm before stacking");
}

void add_schedule_flags(OptionTable& t, Options& o) {
    t.group("Schedule");
    Schedule& s = o.schedule;
    const auto holding = names_where<ScheduleKind>([](ScheduleKind kind) { return row_of(kind).holds_peak; });
    const auto falling = names_where<ScheduleKind>([](ScheduleKind kind) { return row_of(kind).fall != nullptr; });
    Choices<ScheduleKind> kinds;
    for (const ScheduleRow& row : kSchedules) kinds.emplace_back(row.name, row.kind);
    kinds.emplace_back("wsd", ScheduleKind::constant_linear);
    t.choice("--schedule", s.kind, kinds, "learning rate after the warmup; wsd is constant-linear");
    t.number("--warmup-ratio", s.warmup_ratio, 0, 1, "share of the steps with rising learning rate");
    OptionRow& steps = t.integer("--warmup-steps", o.warmup_steps, 0, 1'000'000'000,
                                 "the number of these steps instead, which stays when a run's length changes");
    steps.default_text = "by --warmup-ratio";
    steps.get = [&o] { return o.warmup_steps < 0 ? Json() : Json(o.warmup_steps); };
    t.number("--constant-ratio", s.constant_ratio, 0, 1,
             alternatives(holding) + ": share of the steps before the decay")
        .need("--schedule", holding);
    t.number("--min-lr-ratio", s.min_lr_ratio, 0, 1,
             "final learning rate as a share of the peak, reached one step after the last")
        .need("--schedule", falling)
        .follows([&s] { s.min_lr_ratio = row_of(s.kind).min_lr_ratio; })
        .default_text = "0.1 cosine, 0 else";
}

}  // namespace

void add_optimizer_flags(OptionTable& t, Options& o) {
    add_update_flags(t, o.optimizer, o);
    add_orthogonalizer_flags(t, o.optimizer, o);
    add_teon_flags(t, o.optimizer);
    add_schedule_flags(t, o);
}

}  // namespace teon
