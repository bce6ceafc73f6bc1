#include "plan/options.h"

#include <fmt/ranges.h>

#include <map>

#include "files/file.h"
#include "files/json.h"
#include "optim/methods.h"
#include "options/option_table.h"
#include "plan/gpus.h"

namespace teon {

namespace {

constexpr int64_t kMaxInt = 1'000'000'000;
constexpr int64_t kMaxCount = 1'000'000'000'000'000;

std::string role_names(bool (*which)(Role)) {
    std::vector<std::string_view> names;
    for (const auto& [role, name] : kEnumNames<Role>)
        if (which(role)) names.push_back(name);
    return fmt::format("{}", fmt::join(names, ", "));
}

Role parse_role(const std::string& flag, const std::string& text, bool (*which)(Role)) {
    for (const auto& [role, name] : kEnumNames<Role>)
        if (name == lower_case(text) && which(role)) return role;
    throw UsageError(fmt::format("{} {}: not a role; there are {}", flag, text, role_names(which)));
}

// Whether --lr-scale accepts the role.
bool has_lr_scale(Role role) { return role != Role::norm && role != Role::bias; }

constexpr bool kFree = false;  // may differ when a run resumes

// Adds the flag of a model field. The flag sets the field in field_values. If it is not given, a run's config.json has
// the default that all presets share or, if they differ, 0 for an integer and null for other types.
void add_field_flag(OptionTable& t, Json& field_values, const ModelField& f, const ModelFamily& family) {
    const auto add = [&]<typename T>(T DecoderConfig::*member) {
        const auto value = std::make_shared<T>(DecoderConfig().*member);
        OptionRow& row = [&]() -> OptionRow& {
            if constexpr (std::is_same_v<T, int>)
                return t.integer(f.flag(), *value, static_cast<int64_t>(f.least), static_cast<int64_t>(f.most), f.help);
            else if constexpr (std::is_same_v<T, float>)
                return t.number(f.flag(), *value, f.least, f.most, f.help);
            else if constexpr (std::is_same_v<T, bool>)
                return t.toggle(f.flag(), *value, f.help);
            else if constexpr (std::is_same_v<T, ActivationKind>)
                return t.choice(f.flag(), *value, family.mlps, family.help(f));
            else
                return t.choice(f.flag(), *value, f.help);
        }();
        Json absent;
        if constexpr (std::is_same_v<T, int>) absent = 0;
        if (f.default_text.empty())
            absent = row.get();
        else
            row.default_text = f.default_text;
        row.set = [&field_values, value, key = f.key, set = row.set, get = row.get](const std::string& text) {
            set(text);
            field_values[key] = get();
        };
        row.get = [&field_values, key = f.key, absent] { return field_values.value(key, absent); };
    };
    std::visit(add, f.member);
}

void add_model_flags(OptionTable& t, Options& o, const ModelFamily& family) {
    t.group("Model");
    std::vector<std::string> presets;
    for (const DecoderConfig& c : family.presets) presets.push_back(c.preset);
    t.name("--model", o.model, presets, "preset that the flags below override");
    for (const ModelField& f : family.fields)
        if (family.has_flag(f)) add_field_flag(t, o.fields, f, family);
    t.integer("--seq-len", o.seq_len, 1, kMaxContext, "tokens per sequence");
    t.choice(
        "--dtype", o.dtype, {{"auto", std::nullopt}, {"float", DType::f32}, {"bf16", DType::bf16}},
        "storage type of weights and activations (master weights and sums are float); auto: bf16 on a GPU and on a "
        "CPU that multiplies bf16 in hardware, else float");
    t.choice("--matmul-dtype", o.matmul_dtype,
             "operands of the blocks' products: as stored (same), or FP8 copies: E4M3 with E5M2 gradients (fp8), or "
             "all E4M3 (fp8-e4m3); needs --dtype bf16 and, on a GPU, compute capability 8.9");
    t.toggle(
        "--fast-accumulation", o.fast_accumulation,
        "with --matmul-dtype fp8 or fp8-e4m3: leave the sums of forward products in the tensor cores, which may be "
        "faster, with about 14 bits of them (docs/fp8.md)");
    OptionRow& recompute = t.choice(
        "--recompute", o.recompute,
        "what the backward pass computes again instead of storing: nothing, norms and activations, or whole blocks; "
        "auto: as little, block by block, as the device permits");
    recompute.fixed = false;  // it changes no number
    t.choice(
        "--attention", o.attention,
        "attention by matrix products, or fused on tensor cores (bf16, head size 64 or 128); auto: flash on a GPU that "
        "supports it");
    if (family.config(family.default_preset).mlp == ActivationKind::gelu)
        t.toggle("--gelu-fusion", o.gelu_fusion,
                 "fuse GELU and its derivative into the library's matrix products (last bits differ); --recompute "
                 "cheap then keeps the output of GELU");
    t.toggle("--autotune", o.autotune,
             "on a GPU, time the library's algorithms for each matrix product and use the fastest; changes the last "
             "bits of results");
    OptionRow& algorithms = t.text("--algorithms", o.algorithms, "FILE",
                                   "with --autotune: file that keeps the chosen algorithms; new choices are added");
    algorithms.default_text = "algorithms.jsonl in the run's folder";
    algorithms.fixed = false;
}

void add_data_flags(OptionTable& t, Options& o) {
    t.group("Data");
    t.text("--data", o.data, "PATH",
           "training shards: a folder (its split \"train\"), a file, a glob or a list of these; A:0.7,B:0.3: a mixture")
        .is_list = true;
    t.rows.back().fixed = false;  // shards may move; their content is compared
    OptionRow& val_data = t.text("--val-data", o.val_data, "PATH", "validation shards, likewise (split \"val\")");
    val_data.default_text = "--data's, if a folder";
    val_data.is_list = true;
    val_data.fixed = false;
    t.toggle("--shuffle", o.shuffle, "visit windows in a random order, each once an epoch");
    t.toggle("--verify-data", o.verify_data,
             "first compare the shards' content with their manifest.json (reads them all)")
        .fixed = false;
    t.rows.back().this_call = true;
    t.toggle("--document-mask", o.document_mask, "attention and positions restart at each document");
}

void add_length_flags(OptionTable& t, Options& o) {
    t.group("Batch and length");
    t.integer("--batch-tokens", o.batch_tokens, 1, kMaxCount, "tokens per optimizer step").default_text =
        "about 524288 on a GPU; on a CPU, where that may take an hour, about what 2e12 operations train";
    // The resolved values of the following are compared (run_json).
    t.group("Batch and length", kFree);
    t.integer("--micro-batch", o.micro_batch, 1, 1 << 20, "sequences per device and forward pass").default_text =
        "the most that fits";
    t.integer("--steps", o.steps, 1, kMaxCount, "optimizer steps").default_text = "from --epochs";
    t.integer("--tokens", o.tokens, 1, kMaxCount, "training tokens, instead of --steps").default_text = "from --epochs";
    t.number("--epochs", o.epochs, 1e-6, 1e6, "passes over the data, instead of --steps").default_text = "1";
}

// Returns the text of a default that depends on the method: "5e-3 muon, ...".
template <typename F>
std::string by_method(F value) {
    std::map<float, std::vector<std::string_view>> names;
    for (const MethodInfo& m : methods()) names[value(m)].push_back(name_of(m.method));
    if (names.size() == 1) return fmt::format("{}", as_written(names.begin()->first));
    std::vector<std::string> texts;
    for (const auto& [x, of] : names) texts.push_back(fmt::format("{} {}", as_written(x), fmt::join(of, ", ")));
    return fmt::format("{}", fmt::join(texts, "; "));
}

void add_optimizer_flags(OptionTable& t, OptimizerOptions& opt, Options& o) {
    t.group("Optimizer");
    t.choice("--optimizer", opt.method,
             "adamw and lion update all parameters; the others the hidden matrices, and AdamW the rest");
    t.number("--lr", opt.lr, 0, 100, "peak learning rate").default_text =
        by_method([](const MethodInfo& m) { return m.lr; });
    t.number("--adamw-lr", o.adamw_lr, 0, 100,
             "peak learning rate of what AdamW updates beside another optimizer: embeddings, head, norms and biases")
        .default_text = "3e-4 x 3072 / channels, at most 0.01";
    t.number("--weight-decay", opt.weight_decay, 0, 10,
             "decoupled weight decay, of matrices and embeddings, never of norms and biases");
    t.number("--adamw-weight-decay", opt.adamw_weight_decay, 0, 10,
             "weight decay of what AdamW updates beside another optimizer")
        .default_text = "= weight-decay";
    t.toggle("--cautious-weight-decay", opt.cautious_weight_decay, "decay only weights that the update moves to zero");
    t.number("--grad-clip", o.grad_clip, 0, 1e9, "largest global gradient norm; 0: no clipping");
    t.number("--beta1", opt.beta1, 0, 0.999999,
             "decay of AdamW's first moment; for Lion, the weight of the momentum in the update")
        .default_text = by_method([](const MethodInfo& m) { return m.beta1; });
    t.number("--beta2", opt.beta2, 0, 0.999999, "decay of AdamW's second moment; for Lion, of the momentum")
        .default_text = by_method([](const MethodInfo& m) { return m.beta2; });
    t.number("--eps", opt.eps, 1e-30, 1, "AdamW's epsilon").default_text = "1e-8";
    t.number("--momentum", opt.momentum, 0, 0.999999, "momentum of the matrices that are orthogonalized");
    t.number("--update-rms", opt.update_rms, 0, 10,
             "root mean square X of a hidden matrix's update before the learning rate, as in Moonlight: scale by "
             "X sqrt(max(rows, columns)); 0.2 is AdamW's size, with AdamW's learning rate; 0: scale by "
             "sqrt(rows / columns)");
    t.toggle("--nesterov", opt.nesterov, "orthogonalize gradient + momentum * M instead of M");
    t.toggle(
        "--neuron-norm", opt.neuron_norm,
        "NorMuon's normalization of each neuron's update, on Muon's and on Teon's matrices; normuon always has it");
    t.number("--neuron-beta2", opt.neuron_beta2, 0, 0.999999, "decay of the neurons' second moments");
    t.add(
         "--lr-scale", "ROLE=X,...",
         fmt::format("factors of the learning rate per role, e.g. q=0.707,k=0.707,v=0.707; there are {}; norms and "
                     "biases always have 1, and weight decay keeps the unscaled rate",
                     role_names(has_lr_scale)),
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
    t.group("Orthogonalizer");
    t.choice("--ortho", opt.ortho, "exact polar factor, or a Newton-Schulz coefficient set");
    t.toggle("--ortho-per-head", opt.ortho_per_head, "orthogonalize the q, k and v of each attention head by itself");
    t.integer("--ns-steps", opt.ns_steps, 1, 100, "Newton-Schulz steps").default_text = "5, or 4 with --ns-aol";
    t.toggle("--ns-aol", opt.ns_aol, "AOL preconditioning, as in Turbo-Muon, instead of the coefficients' first step");
    t.choice("--ns-form", opt.ns_form, "iterate on the matrix or on its Gram matrix; auto: by aspect ratio");
    t.choice(
        "--ns-dtype", o.ns_dtype,
        {{"auto", std::nullopt}, {"float", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}},
        "type of the Newton-Schulz matrices; auto: f16 on a GPU, bf16 beside --dtype bf16 on a CPU that multiplies it "
        "in hardware, else float");
}

void add_teon_flags(OptionTable& t, OptimizerOptions& opt) {
    t.group("Teon");
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

void add_soap_flags(OptionTable& t, OptimizerOptions& opt) {
    t.group("SOAP");
    t.integer("--soap-frequency", opt.soap_frequency, 1, 1'000'000,
              "updates from one computation of the eigenvectors to the next");
    t.integer("--soap-max-dim", opt.soap_max_dim, 0, 1 << 24,
              "longest side of a matrix for which eigenvectors are computed; 0: none, which is AdamW");
}

void add_schedule_flags(OptionTable& t, Options& o) {
    t.group("Schedule");
    t.choice("--schedule", o.schedule.kind, "learning rate after the warmup");
    t.number("--warmup-ratio", o.schedule.warmup_ratio, 0, 1, "share of the steps with rising learning rate");
    t.number("--constant-ratio", o.schedule.constant_ratio, 0, 1,
             schedules_that_hold_peak() + ": share of the steps before the decay");
    t.number("--min-lr-ratio", o.min_lr_ratio, 0, 1,
             "final learning rate as a share of the peak, reached one step after the last")
        .default_text = "0.1 cosine, 0 else";
}

void add_run_flags(OptionTable& t, Options& o) {
    t.group("Run", kFree);
    t.text("--out", o.out, "FOLDER", "where the run is written").default_text = "runs/<model>-<optimizer>-<time>";
    t.rows.back().this_call = true;
    t.integer("--seed", o.seed, 0, kMaxCount, "seed of initialization and data order").fixed = true;
    t.integer("--eval-every", o.eval_every, 0, kMaxCount, "steps between evaluations; 0: only at the end");
    t.integer("--eval-tokens", o.eval_tokens, 1, kMaxCount, "validation tokens per evaluation").default_text =
        "all, at most 10485760";
    t.integer("--patience", o.patience, 0, kMaxCount,
              "end the run after this many evaluations in a row without a lower validation loss; 0: never");
    t.integer("--log-every", o.log_every, 1, kMaxInt, "steps between console lines");
    t.integer("--diagnose-every", o.diagnose_every, 0, kMaxCount,
              "steps between measurements of singular vector alignment; 0: never");
    t.choice(
        "--graphs", o.graphs, {{"auto", std::nullopt}, {"on", true}, {"off", false}},
        "after the first step, replay micro-batches and updates as CUDA graphs, which changes no number (of several "
        "ranks, only micro-batches before a step's last, unless --shard divides gradients; no update by --ortho svd or "
        "--optimizer soap); auto: on a GPU");
    t.choice(
        "--kernels", o.kernels,
        "on a GPU: the fastest kernels for it, each of which may start while the one before it ends; the same, one "
        "after the other (in-turn, the same numbers); or likewise, and only those that A100 has too (portable, "
        "other last bits on H100 and H200), where a newer one is at fault");
    t.choice("--shard", o.shard,
             "what several ranks divide: nothing, the optimizer's state and bf16's float masters, gradients too, or "
             "all, weights included; auto: from optimizer on, the first that fits the device and whose expected "
             "step is within 2% of the shortest, on a GPU that --plan-for knows; elsewhere the first that fits");
    t.choice("--offload", o.offload,
             {{"none", Offload(0)}, {"optimizer", Offload(1)}, {"activations", Offload(2)}, {"all", Offload(3)}},
             "what to keep in the host's pinned memory: the optimizer's state and bf16's float masters, which updates "
             "read and write over PCIe; activations of the first blocks, copied while other blocks compute; or both; "
             "changes no number");
    t.integer("--offload-blocks", o.offload_blocks, 1, kMaxInt,
              "number of blocks whose activations are offloaded, at most all but two")
        .default_text = "the fewest that fit, after --recompute";
    t.choice("--grad-comm-dtype", o.grad_comm_dtype, std::vector<DType>{DType::f32, DType::bf16},
             "type in which ranks exchange and sum gradients; bf16 halves the bytes and rounds each partial sum")
        .fixed = true;
    t.integer("--memory", o.memory, 1, kMaxCount, "bytes of device memory to plan for, e.g. 40Gi").default_text =
        "what is free; 80Gi with --plan-only";
}

void add_checkpoint_flags(OptionTable& t, Options& o) {
    t.group("Checkpoints", kFree);
    t.integer("--checkpoint-every", o.checkpoint_every, 0, kMaxCount, "steps between checkpoints; 0: only at the end");
    t.toggle("--checkpoint-end", o.checkpoint_end,
             "write a checkpoint after the last step; off is for measurements: the result is lost");
    t.number("--checkpoint-minutes", o.checkpoint_minutes, 0, 1e6,
             "minutes by rank 0's clock between checkpoints that the next one replaces; 0: only by steps");
    t.integer("--keep-last", o.keep_last, 0, kMaxCount,
              "keep this many checkpoints; 0: keep all but those by the clock");
    t.integer("--keep-every", o.keep_every, 0, kMaxCount,
              "also keep checkpoints of steps that are multiples of this; 0: none");
    t.toggle("--keep-best", o.keep_best,
             "also keep the checkpoint with the lowest validation loss, which the link `best` in --out points to");
    t.toggle("--checkpoint-sync", o.checkpoint_sync,
             "wait for each checkpoint instead of training while it is written");
    t.choice("--on-save-error", o.stop_on_save_error, {{"continue", false}, {"stop", true}},
             "what to do if a checkpoint cannot be written (earlier ones stay intact)");
    OptionRow& resume = t.toggle(
        "--resume", o.resume,
        "continue from the newest whole checkpoint in --out (or --resume FOLDER), with the flags of its config.json "
        "where none are given here; begins a run if there is no checkpoint yet");
    resume.this_call = true;
    resume.set = [&o, toggle = resume.set](const std::string& text) {
        const std::string word = lower_case(text);
        const bool is_path = text.find('/') != std::string::npos || is_folder(text);
        if (!is_path || word == "on" || word == "off" || word == "true" || word == "false") return toggle(text);
        o.resume = true;
        o.resumed_folder = text;
    };
    t.text("--init-from", o.init_from, "PATH",
           "begin with the model of a folder (config.json, model.safetensors or its index), a run, a file or "
           "hf:OWNER/NAME");
    t.duration("--time-limit", o.time_limit, "save and end after this time, e.g. 23h50m").default_text = "none";
}

void add_guard_flags(OptionTable& t, Options& o) {
    t.group("Guards", kFree);
    t.integer("--max-skipped", o.max_skipped, 0, kMaxInt,
              "end the run after this many skipped updates in a row; 0: never");
    t.number("--skip-spikes", o.skip_spikes, 0, 1e6,
             "skip updates whose loss or gradient norm is this many standard deviations above its mean; 0: never")
        .fixed = true;
    t.number("--warn-spikes", o.warn_spikes, 0, 1e6, "report such steps without skipping them; 0: never");
}

void add_sample_flags(OptionTable& t, Options& o) {
    t.group("Samples", kFree);
    t.integer("--sample-every", o.sample_every, 0, kMaxCount, "steps between sampled texts; 0: never");
    add_sampling_flags(t, o.sampling);
}

void add_check_flags(OptionTable& t, Options& o) {
    t.group("Checks", kFree);
    t.toggle("--plan-only", o.plan_only, "print parameters, memory and optimizer plan; use no device").this_call = true;
    std::vector<std::string> gpus;
    for (const KnownGpu& gpu : known_gpus()) gpus.push_back(gpu.name);
    OptionRow& plan_for = t.name("--plan-for", o.plan_for, gpus,
                                 "--plan-only for this GPU, which need not be present: its memory, its attention "
                                 "kernel, the expected step time");
    plan_for.this_call = true;
    plan_for.logged = false;
    t.toggle("--eval-only", o.eval_only,
             "train nothing; evaluate the weights of --init-from, or of the newest checkpoint in --out with --resume")
        .this_call = true;
    t.text("--hellaswag", o.hellaswag, "FILE", "with --eval-only: HellaSwag in llm.c's .bin format").this_call = true;
    t.integer("--ranks", o.ranks, 1, 65536,
              "with --plan-only: plan for this many devices, and print each rank's share of the update")
        .this_call = true;
    t.number("--bandwidth", o.bandwidth, 0, 1e6,
             "with --ranks: GB/s per rank, to predict communication; 0: the rate of --plan-for, if given")
        .this_call = true;
    t.range("--profile-steps", o.profile_steps,
            "time every kernel of these steps, each of which then waits for the end of the one before it; the table "
            "goes to profile.txt in the run's folder")
        .this_call = true;
    t.toggle("--check-ranks", o.check_ranks, "compare the weights of all ranks after every step (slow)");
    t.toggle("--rank-logs", o.rank_logs,
             "write metrics.rankN.jsonl and rankN.log of the ranks above 0 to the run's folder");
    t.duration("--comm-timeout", o.comm_timeout,
               "how long a rank waits for the others before it reports the operation and ends the run")
        .default_text = "10m";
}

}  // namespace

OptionTable option_table(const ModelFamily& family, Options& o) {
    OptionTable t;
    add_model_flags(t, o, family);
    add_data_flags(t, o);
    add_length_flags(t, o);
    add_optimizer_flags(t, o.optimizer, o);
    add_orthogonalizer_flags(t, o.optimizer, o);
    add_teon_flags(t, o.optimizer);
    add_soap_flags(t, o.optimizer);
    add_schedule_flags(t, o);
    add_run_flags(t, o);
    add_checkpoint_flags(t, o);
    add_guard_flags(t, o);
    add_sample_flags(t, o);
    add_check_flags(t, o);
    return t;
}

}  // namespace teon
