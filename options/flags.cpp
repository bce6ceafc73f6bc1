#include "options/flags.h"

#include <span>

#include "files/file.h"
#include "files/json.h"
#include "optim/methods.h"
#include "options/optimizer_flags.h"

namespace teon {

namespace {

constexpr int64_t kMaxInt = 1'000'000'000;
constexpr int64_t kMaxCount = 1'000'000'000'000'000;

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
    t.toggle("--fast-accumulation", o.fast_accumulation,
             "with --matmul-dtype fp8 or fp8-e4m3: leave the sums of forward products in the tensor cores, which may "
             "be faster, with about 14 bits of them (docs/fp8.md)")
        .need("--matmul-dtype", {"fp8", "fp8-e4m3"});
    OptionRow& recompute = t.choice(
        "--recompute", o.recompute,
        "what the backward pass computes again instead of storing: nothing, norms and activations, or whole blocks; "
        "auto: as little, block by block, as the device permits");
    recompute.fixed = false;  // it changes no number
    t.choice(
        "--attention", o.attention,
        "attention by matrix products, or fused on tensor cores (bf16, head size 64 or 128); auto: flash on a GPU that "
        "supports it");
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
    t.toggle("--document-mask", o.document_mask, "attention and positions restart at each document");
    OptionRow& delimiter = t.integer("--delimiter", o.delimiter, 0, 1 << 24,
                                     "token that begins documents, for shards without manifest.json");
    delimiter.default_text = "the manifest's";
    delimiter.fixed = false;  // that of the data is compared
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
              "steps between measurements of singular vector alignment; 0: never")
        .methods = [](const MethodInfo& m) { return m.orthogonalizes; };
    t.choice(
        "--graphs", o.graphs, {{"auto", std::nullopt}, {"on", true}, {"off", false}},
        "after the first step, replay micro-batches and updates as CUDA graphs, which changes no number (of several "
        "ranks, only micro-batches before a step's last, unless --shard divides gradients; no update by --ortho svd); "
        "auto: on a GPU");
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
             "what to keep in the host's pinned memory: the optimizer's state and bf16's float masters, which updates "
             "read and write over PCIe; activations of the first blocks, copied while other blocks compute; or both; "
             "changes no number");
    t.integer("--offload-blocks", o.offload_blocks, 1, kMaxInt,
              "number of blocks whose activations are offloaded, at most all but two")
        .need("--offload", {"activations", "all"})
        .default_text = "the fewest that fit, after --recompute";
    t.choice("--grad-comm-dtype", o.grad_comm_dtype, std::vector<DType>{DType::f32, DType::bf16},
             "type in which ranks exchange and sum gradients; bf16 halves the bytes and rounds each partial sum")
        .fixed = true;
    t.integer("--memory", o.memory, 1, kMaxCount, "bytes of device memory to plan for, e.g. 40Gi").default_text =
        "what is free here; with --plan-for, that of the GPU";
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
              "also keep checkpoints of steps that are multiples of this; 0: none")
        .need("--keep-last");
    t.toggle("--keep-best", o.keep_best,
             "also keep the checkpoint with the lowest validation loss, which the link `best` in --out points to")
        .default_text = "on for two epochs or more with several evaluations";
    t.toggle("--checkpoint-sync", o.checkpoint_sync,
             "wait for each checkpoint instead of training while it is written");
    t.choice("--on-save-error", o.stop_on_save_error, {{"continue", false}, {"stop", true}},
             "what to do if a checkpoint cannot be written (earlier ones stay intact)");
    OptionRow& resume = t.toggle(
        "--resume", o.resume,
        "continue from the newest whole checkpoint in --out (or --resume FOLDER), with the flags of its config.json "
        "where none are given here; begins a run if there is no checkpoint yet");
    resume.need("--out").this_call = true;
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
    t.duration("--time-limit", o.time_limit, "save and end after this time, e.g. 23h50m").default_text =
        "none; in a Slurm job a minute and two saves before its end";
    t.integer("--exit-when-stopped", o.exit_when_stopped, 0, 125,
              "exit status of a run that a signal or a time limit has stopped before its last step, after saving, e.g. "
              "75; 0: the same as that of a finished run");
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
    const size_t first = t.rows.size();
    add_sampling_flags(t, o.sampling);
    for (OptionRow& row : std::span(t.rows).subspan(first)) row.need("--sample-every");
}

void add_check_flags(OptionTable& t, Options& o) {
    t.group("Checks", kFree);
    t.toggle("--plan-only", o.plan_only,
             "print parameters, memory and optimizer plan, and refuse what a run on this machine would refuse, but for "
             "data that are not there yet; compute nothing")
        .this_call = true;
    OptionRow& plan_for = t.name("--plan-for", o.plan_for, plan_names(),
                                 "--plan-only for this GPU, which need not be present: its memory, its attention "
                                 "kernel, the expected step time");
    plan_for.this_call = true;
    plan_for.logged = false;
    OptionRow& price = t.number("--price", o.price, 0, 1e6,
                                "price of a GPU and hour in any currency: the plan then has the whole run's");
    price.need("--plan-for").this_call = true;
    price.logged = false;
    t.toggle("--eval-only", o.eval_only,
             "train nothing; evaluate the weights of --init-from, or of the newest checkpoint in --out with --resume")
        .this_call = true;
    t.toggle("--eval-all", o.eval_all, "with --eval-only: all shards of the folders, not only those for validation")
        .need("--eval-only")
        .this_call = true;
    t.integer("--eval-stride", o.eval_stride, 0, 1 << 20,
              "with --eval-only: count only the last N targets of each window but the first; windows overlap, and a "
              "shard's end counts; 0: windows that do not overlap")
        .need("--eval-only")
        .this_call = true;
    t.text("--hellaswag", o.hellaswag, "FILE", "with --eval-only: HellaSwag in llm.c's .bin format")
        .need("--eval-only")
        .this_call = true;
    t.text("--hellaswag-out", o.hellaswag_out, "FILE", "a line of JSON for each question: nats of each ending")
        .need("--hellaswag")
        .this_call = true;
    t.integer("--ranks", o.ranks, 1, 65536,
              "with --plan-only: plan for this many devices, and print each rank's share of the update")
        .need("--plan-only", {}, "a run's ranks come from local.py, mpirun, torchrun or srun")
        .this_call = true;
    t.number("--bandwidth", o.bandwidth, 0, 1e6,
             "with --ranks: GB/s per rank, to predict communication; 0: the rate of --plan-for, if given")
        .need("--plan-only")
        .this_call = true;
    t.range("--profile-steps", o.profile_steps,
            "time every kernel of these steps, each of which then waits for the end of the one before it; the table "
            "goes to profile.txt in the run's folder")
        .this_call = true;
    t.toggle("--check-ranks", o.check_ranks, "compare the weights of all ranks after every step (slow)");
    t.toggle("--rank-logs", o.rank_logs,
             "write metrics.rankN.jsonl and rankN.log of the ranks above 0 to the run's folder")
        .need("--out");
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
    add_optimizer_flags(t, o);
    add_run_flags(t, o);
    add_checkpoint_flags(t, o);
    add_guard_flags(t, o);
    add_sample_flags(t, o);
    add_check_flags(t, o);
    return t;
}

}  // namespace teon
