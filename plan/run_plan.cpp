#include "plan/run_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>

#include "base/text.h"
#include "files/file.h"
#include "files/json.h"
#include "kernels/attention/flash.h"
#include "model/decoder.h"
#include "optim/methods.h"
#include "runtime/linalg/library.h"

namespace teon {

namespace {

constexpr int kHeadRows = 8192;  // rows of logits that a GPU computes at a time

// Throws UsageError if a given flag contradicts the model of --init-from; flags may repeat its values.
void check_agrees(const ModelFamily& family, const Options& o, const DecoderConfig& model) {
    const bool preset = o.given_flags.count("--model") > 0;
    const DecoderConfig config_by_flags = with_fields(family.fields, preset ? family.config(o.model) : model, o.fields);
    for (const ModelField& f : family.fields) {
        if (!family.has_flag(f) || f.of_run) continue;
        const bool is_given = o.given_flags.count(f.flag()) > 0;
        CHECK_USAGE(f.get(config_by_flags) == f.get(model) || !(is_given || (preset && f.in_preset)),
                    "{} {}: the model of --init-from has {}; leave the flag out to take it as it is",
                    is_given ? f.flag() : fmt::format("--model {} with {}", o.model, f.key), f.text(config_by_flags),
                    f.text(model));
    }
}

DecoderConfig make_config(const ModelFamily& family, const Options& o, const DataSet& data) {
    DecoderConfig c;
    if (o.adopted) {
        c = o.adopted->config;
        check_agrees(family, o, c);
        for (const ModelField& f : family.fields)
            if (f.of_run && o.fields.contains(f.key)) f.set(c, o.fields[f.key], f.name());
        CHECK_USAGE(o.seq_len <= c.max_T, "--seq-len {}: the model of --init-from has a context of {}", o.seq_len,
                    c.max_T);
        check_model_tokenizer(data, o.adopted->folder, c.V);
    } else {
        c = with_fields(family.fields, family.config(o.model), o.fields);
        const bool is_given = o.fields.contains("vocab_size");
        CHECK_USAGE(!is_given || c.V >= data.vocab_size,
                    "--vocab-size {}: the data's manifest.json says {}; leave the flag out to use that", c.V,
                    data.vocab_size);
        if (!is_given && data.vocab_size) c.V = data.vocab_size;
        c.max_T = o.seq_len;
    }
    validate(c);
    hf_config(family, c);  // throws if checkpoints of this model cannot be written
    return c;
}

void open_data(RunPlan& p) {
    const Options& o = p.options;
    if (o.data.empty()) return;
    try {
        p.train = open_dataset(o.data, "train");
        if (!o.val_data.empty()) {
            p.val = open_dataset(o.val_data, "val");
        } else if (is_folder(o.data)) {
            p.val = open_dataset(o.data, "val");
        }
    } catch (const MissingData& missing) {
        if (!o.plan_only) throw;
        p.train = p.val = {};
        p.notes.emplace_back("note", fmt::format("{}: planned without data{}", missing.what(),
                                                 o.fields.contains("vocab_size") || o.adopted
                                                     ? ""
                                                     : ", with the preset's vocabulary (--vocab-size)"));
        return;
    }
    if (!p.train.mixture.empty() && !o.mixture_in_turn)
        p.notes.emplace_back(
            "note",
            "this run began with version 0.2 and keeps its order of the mixture, in which a source may "
            "repeat windows within an epoch; a new run has each window once");
    CHECK_USAGE(p.val.mixture.empty(), "--val-data {}: a mixture cannot be evaluated; name the sources without weights",
                o.val_data);
    check_same_tokenizer(p.train, p.val);
    check_disjoint(p.train, p.val);
    if (!o.plan_only)
        for (DataSet* data : {&p.train, &p.val}) identify(*data);
    for (const ShardInfo& shard : p.train.shards) p.data_tokens += shard.tokens;
}

// Says that nothing but the preset states the vocabulary, with what the first shard shows of it.
void note_assumed_vocabulary(RunPlan& p) {
    const Options& o = p.options;
    if (p.train.shards.empty() || p.train.vocab_size > 0 || o.adopted || o.fields.contains("vocab_size")) return;
    const ShardInfo& first = p.train.shards.front();
    p.notes.emplace_back(
        "note",
        fmt::format("vocabulary {} is assumed, the preset's, because there is no manifest.json; the largest id of "
                    "{} is {} (--vocab-size, or scripts/prepare.py adopt)",
                    p.config.V, first.path, largest_token(first)));
}

constexpr int64_t kFewSteps = 50;       // fewer teach a model almost nothing: the warmup alone takes some
constexpr int64_t kStepsOfEpoch = 200;  // at least, if --batch-tokens is not given
constexpr int64_t kMaxBatchTokens = 524288;

int64_t windows_of(const std::vector<ShardInfo>& shards, int T) {
    int64_t n = 0;
    for (const ShardInfo& shard : shards) n += std::max<int64_t>(0, (shard.tokens - 1) / T);
    return n;
}

// Returns the least tokens of a step: a sequence or --micro-batch for each rank.
int64_t batch_unit(const RunPlan& p) {
    return int64_t{p.ranks} * std::max(1, p.options.micro_batch) * p.options.seq_len;
}

// Returns the tokens of an epoch, or of the run if that is shorter; 0 if neither data nor flags say.
double tokens_to_divide(const RunPlan& p) {
    const Options& o = p.options;
    double tokens = INFINITY;
    if (!p.train.shards.empty()) tokens = static_cast<double>(windows_of(p.train.shards, o.seq_len) * o.seq_len);
    if (o.epochs > 0) tokens *= std::min(1.0, o.epochs);
    if (o.tokens > 0) tokens = std::min(tokens, static_cast<double>(o.tokens));
    return tokens;
}

// Returns n with its bits after the third cleared, so that many micro-batches divide it: 211 gives 192.
int64_t rounded_down(int64_t n) {
    const int dropped = std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(n))) - 3);
    return n >> dropped << dropped;
}

int64_t default_batch_tokens(const RunPlan& p) {
    constexpr double kCpuOperations = 2e12;
    double tokens = tokens_to_divide(p) / kStepsOfEpoch;
    if (!p.is_gpu)
        tokens = std::min(tokens, p.ranks * kCpuOperations / decoder_flops_per_token(p.config, p.options.seq_len));
    const int64_t unit = batch_unit(p);
    const int64_t most_units = std::max<int64_t>(1, kMaxBatchTokens / unit);
    const double units = tokens / static_cast<double>(unit);
    return units < static_cast<double>(most_units)
               ? std::max<int64_t>(1, rounded_down(static_cast<int64_t>(units))) * unit
               : most_units * unit;
}

void check_shares(const RunPlan& p) {
    const Options& o = p.options;
    const int64_t sequences = o.batch_tokens / o.seq_len;
    const int64_t each = std::max(1, o.micro_batch) * int64_t{p.ranks};
    CHECK_USAGE(sequences % each == 0,
                "--batch-tokens {}: its {} sequences are no multiple of {} ranks{}; {} tokens would be", o.batch_tokens,
                sequences, p.ranks, o.micro_batch > 0 ? fmt::format(" x --micro-batch {}", o.micro_batch) : "",
                (sequences / each + 1) * each * o.seq_len);
}

// Throws UsageError unless products of flags fit: tokens and bytes in 64 bits, rows and a step's sequences in 32.
void check_countable(const RunPlan& p) {
    const Options& o = p.options;
    int64_t tokens = 0;
    CHECK_USAGE(!__builtin_mul_overflow(p.steps, o.batch_tokens, &tokens) && tokens <= INT64_MAX / 8,
                "--steps {} x --batch-tokens {}: more tokens than can be counted ({:.1e})", p.steps, o.batch_tokens,
                static_cast<double>(p.steps) * static_cast<double>(o.batch_tokens));
    const int64_t sequences = o.batch_tokens / o.seq_len;
    CHECK_USAGE(sequences <= INT_MAX,
                "--batch-tokens {}: its {} sequences of --seq-len {} are more than can be counted", o.batch_tokens,
                sequences, o.seq_len);
    const DecoderConfig& c = p.config;
    const double rows = static_cast<double>(std::max(1, o.micro_batch)) * o.seq_len;
    const double width = static_cast<double>(c.NH) * o.seq_len + 8.0 * (c.C + c.Fp() + c.qkv_width());
    const double bytes = 4 * rows * (c.L * width + c.Vp());
    CHECK_USAGE(rows <= INT_MAX && bytes <= 0x1p60,
                "--micro-batch {} x --seq-len {}: {:.1e} tokens with {:.1e} bytes of activations are more than can be "
                "counted; lower one of the two",
                std::max(1, o.micro_batch), o.seq_len, rows, bytes);
}

int64_t steps_of_epochs(const RunPlan& p) {
    const Options& o = p.options;
    CHECK_USAGE(p.train.mixture.empty(),
                "--epochs: the sources of a mixture have epochs of their own; give --steps or --tokens");
    const int64_t windows = windows_of(p.train.shards, o.seq_len);
    CHECK_USAGE(windows > 0, "--data: its {} tokens are less than one sequence of --seq-len {} + 1; lower --seq-len",
                p.data_tokens, o.seq_len);
    const double tokens = o.epochs * static_cast<double>(windows * o.seq_len);
    const auto steps = static_cast<int64_t>(std::floor(tokens / static_cast<double>(o.batch_tokens)));
    CHECK_USAGE(steps > 0,
                "--epochs {}: the data's {} tokens are less than one step of --batch-tokens {}; give --batch-tokens {} "
                "or more epochs",
                o.epochs, p.data_tokens, o.batch_tokens, default_batch_tokens(p));
    return steps;
}

void warn_of_few_steps(RunPlan& p) {
    const Options& o = p.options;
    if (o.steps > 0 || p.steps == 0 || p.steps >= kFewSteps) return;  // --steps says what is wanted
    const int64_t smaller = default_batch_tokens(p);
    std::string advice;
    if (smaller < o.batch_tokens)
        advice =
            fmt::format("--batch-tokens {} makes {} of the same data", smaller, p.steps * o.batch_tokens / smaller);
    else if (o.tokens > 0)
        advice = fmt::format("--tokens {} makes {}", kStepsOfEpoch * o.batch_tokens, kStepsOfEpoch);
    else
        advice = fmt::format("--epochs {:.0f} makes at least {}",
                             std::ceil(o.epochs * kStepsOfEpoch / static_cast<double>(p.steps)), kStepsOfEpoch);
    p.notes.emplace_back("warning", fmt::format("{} step{} teach{} a model almost nothing; {}", p.steps,
                                                p.steps == 1 ? "" : "s", p.steps == 1 ? "es" : "", advice));
}

// Says what few tokens can teach, and which preset suits them if the model is far too large (measured:
// docs/using.md#a-small-text).
void note_few_tokens(RunPlan& p) {
    constexpr int64_t kFewTokens = 1'000'000;
    constexpr int64_t kMostParametersPerToken = 100;
    if (p.data_tokens == 0 || p.data_tokens >= kFewTokens || p.options.adopted) return;
    const std::string smallest = p.family->presets.front().preset;
    const int64_t parameters = p.params.logical_size();
    const bool is_too_large = parameters > kMostParametersPerToken * p.data_tokens && p.config.preset != smallest;
    p.notes.emplace_back(
        "note", fmt::format("{} training tokens are few: expect words and names of the text, no sentences that make "
                            "sense (docs/using.md#a-small-text){}",
                            count_text(static_cast<double>(p.data_tokens)),
                            is_too_large ? fmt::format("; {} parameters would memorize them: --model {}",
                                                       count_text(static_cast<double>(parameters)), smallest)
                                         : ""));
}

// Sets options.keep_best by default: in later epochs the validation loss may rise, and the last checkpoint is then
// not the best one. Not where only the last step is evaluated or none is saved.
void keep_best_of_several_epochs(RunPlan& p) {
    Options& o = p.options;
    const int64_t epoch = windows_of(p.train.shards, o.seq_len) * o.seq_len;
    const bool several = p.steps * o.batch_tokens >= 2 * epoch && epoch > 0 && p.train.mixture.empty();
    const bool evaluates = !p.val.shards.empty() && o.eval_every > 0 && o.eval_every < p.steps;
    if (!o.is_chosen("--keep-best") && several && evaluates && o.checkpoint_end) o.keep_best = true;
}

// Sets options.batch_tokens. A given number is rounded down to whole sequences, with a note. The default suits the
// device: 524288 on a GPU, on a CPU at most as many as 2e12 operations per rank train (some seconds' work). It also
// follows the data: an epoch, or the run if that is shorter, has at least 200 steps, down to one sequence (or
// --micro-batch) per rank and step. Throws UsageError unless the ranks and --micro-batch divide the step's sequences.
void plan_batch(RunPlan& p) {
    Options& o = p.options;
    if (o.batch_tokens == 0) {
        o.batch_tokens = default_batch_tokens(p);
    } else if (o.batch_tokens % o.seq_len != 0) {
        CHECK_USAGE(o.batch_tokens > o.seq_len, "--batch-tokens {}: less than one sequence of --seq-len {}",
                    o.batch_tokens, o.seq_len);
        const int64_t given_tokens = o.batch_tokens;
        const int64_t unit = given_tokens > batch_unit(p) ? batch_unit(p) : int64_t{o.seq_len};
        o.batch_tokens = given_tokens / unit * unit;
        p.notes.emplace_back("note", fmt::format("--batch-tokens {} is rounded down to {}, whole sequences of {}",
                                                 given_tokens, o.batch_tokens, o.seq_len));
    }
    check_shares(p);
}

// Sets steps and eval_windows. Adds a note if the steps are few or if nothing will be validated. Throws UsageError if
// the data are too short or if products of the flags overflow.
void plan_length(RunPlan& p) {
    const Options& o = p.options;
    if (o.steps) {
        p.steps = o.steps;
    } else if (o.tokens) {
        p.steps = o.tokens / o.batch_tokens;
        CHECK_USAGE(p.steps > 0, "--tokens {}: less than one step of --batch-tokens {}", o.tokens, o.batch_tokens);
    } else if (!p.train.shards.empty()) {
        p.steps = steps_of_epochs(p);
    }
    const auto [first, last] = o.profile_steps;
    CHECK_USAGE(last == 0 || p.steps == 0 || last <= p.steps, "--profile-steps {}:{}: the run has {} steps", first,
                last, p.steps);
    if (!p.val.shards.empty()) {
        const int64_t limit = o.eval_tokens ? o.eval_tokens : 10485760;
        p.eval_windows = std::min(windows_of(p.val.shards, o.seq_len), std::max<int64_t>(1, limit / o.seq_len));
        CHECK_USAGE(p.eval_windows > 0, "--val-data: {} has no window of --seq-len {} + 1 tokens", p.val.shards[0].path,
                    o.seq_len);
    } else if (!p.train.shards.empty()) {
        CHECK_USAGE(!o.keep_best && o.patience == 0, "{}: there are no validation data; give --val-data",
                    o.keep_best ? "--keep-best" : fmt::format("--patience {}", o.patience));
        p.notes.emplace_back("note",
                             "no validation data, so only the training loss is measured; give --val-data, or a --data "
                             "folder with a split \"val\"");
    }
    check_countable(p);
    warn_of_few_steps(p);
    keep_best_of_several_epochs(p);
}

void check_sharding(const Options& o, int ranks) {
    CHECK_USAGE(ranks == 1 || o.shard != Sharding::all || !needs_whole_weights(o),
                "{}: needs all weights on each rank, but --shard all divides them; use --shard gradients",
                o.check_ranks ? "--check-ranks" : "--sample-every");
}

// Notes which programs would compute another activation than the exported model's.
void note_activation(RunPlan& p) {
    const ActivationFunction& row = row_of(p.config.mlp);
    const ActivationFunction& usual = row_of(row.gated ? ActivationKind::swiglu : ActivationKind::gelu);
    if (row.kind == usual.kind) return;
    p.notes.emplace_back("note", fmt::format("--mlp {}: transformers reads it from the checkpoints; llama.cpp, mlx-lm "
                                             "and CTranslate2 compute {} in its place or refuse it (docs/using.md)",
                                             row.name, usual.name));
}

// Warns of values that are legal, and at which the steps are not those that one expects of them.
void warn_of_options(RunPlan& p) {
    const Options& o = p.options;
    const auto warn = [&](const std::string& text) { p.notes.emplace_back("warning", text); };
    if (p.steps > 0 && o.schedule.warmup_steps > p.steps)
        warn(fmt::format("--warmup-steps {}: the {} steps of this run end before the peak of the learning rate",
                         o.schedule.warmup_steps, p.steps));
    if (o.grad_clip > 0 && o.grad_clip < 1e-6f)
        warn(
            fmt::format("--grad-clip {}: gradients of this norm are lost beside AdamW's --eps {} and the 1e-7 that "
                        "orthogonalization adds to norms; 0 turns clipping off",
                        as_written(o.grad_clip), as_written(o.optimizer.eps)));
    // float's smallest number is 1.4e-45: with --beta2 0.95, 0.05 g^2 is 0 for g below 1.2e-22.
    if (o.optimizer.eps < 1e-21f && info_of(o.optimizer.method).elements->name == "adamw")
        warn(fmt::format(
            "--eps {}: float has no square of a gradient below 1e-22, which is then divided by --eps alone: "
            "its weight moves by up to {:.0e} times the learning rate",
            as_written(o.optimizer.eps), 1e-22 / static_cast<double>(o.optimizer.eps)));
}

// Returns the given storage type, else one that suits the planned device, which need not be this machine's.
DTypeChoice storage_of(const RunPlan& p) {
    if (p.options.dtype || p.is_gpu == (std::string_view(backend_name()) == "cuda"))
        return choose_dtype(p.options.dtype);
    return p.is_gpu ? DTypeChoice{DType::bf16, "a GPU multiplies bf16 in hardware"}
                    : DTypeChoice{DType::f32, "not every CPU multiplies bf16 in hardware"};
}

bool has_newton_schulz(const OptimizerOptions& o) { return info_of(o.method).orthogonalizes && o.ortho != Ortho::svd; }

// Returns the given type of the Newton-Schulz matrices, else the fastest one that suits the planned device. On a CPU
// that multiplies bf16 in hardware, five steps in bf16 take .48 to .68 of float's processor time (an AMD EPYC,
// AVX512_BF16).
DTypeChoice ns_dtype_of(const RunPlan& p) {
    if (p.options.ns_dtype) return {*p.options.ns_dtype, "given"};
    if (p.is_gpu) return {DType::f16, "a GPU"};
    if (p.run.dtype != DType::bf16) return {DType::f32, "beside --dtype float"};
    if (std::string_view(backend_name()) == "cuda") return {DType::f32, "not every CPU multiplies bf16 in hardware"};
    return choose_dtype(std::nullopt);
}

AttentionKind attention_of(const RunPlan& p) {
    const DecoderConfig& c = p.config;
    const bool tensor_cores = p.is_gpu && supports_flash(c, p.run);
    if (p.options.attention == AttentionKind::automatic && tensor_cores) return AttentionKind::flash;
    DecoderRun asked = p.run;
    asked.attention = p.options.attention;
    return resolve_attention(c, asked);
}

// Notes what a GPU loses if no flash attention has the model's head size, and which number of heads would have it.
void note_head_size(RunPlan& p) {
    const DecoderConfig& c = p.config;
    if (!p.is_gpu || p.run.dtype != DType::bf16 || p.options.attention != AttentionKind::automatic ||
        p.run.attention == AttentionKind::flash)
        return;
    std::vector<std::string> ways;
    for (const int size : {128, 64})
        if (c.C % size == 0 && c.NKV == c.NH) ways.push_back(fmt::format("--heads {} (of {})", c.C / size, size));
    // The forward pass alone writes each score as float, reads it, and writes and reads its probability as bf16.
    const double scores = static_cast<double>(p.options.batch_tokens) * c.NH * c.L * p.run.T / 2;
    p.notes.emplace_back(
        "note", fmt::format("heads of {} have no flash attention: the scores of a step cross the device's memory, at "
                            "least {}{}",
                            c.HS(), bytes_text(12 * scores),
                            ways.empty() ? "" : fmt::format("; {} would have it", joined(ways, " or "))));
}

}  // namespace

RunPlan plan_run(const ModelFamily& family, const Options& options, bool is_gpu, int ranks) {
    RunPlan p;
    p.family = &family;
    p.options = options;
    p.is_gpu = is_gpu;
    p.ranks = ranks;
    Options& o = p.options;
    if (o.adopted && !o.given_flags.count("--seq-len")) o.seq_len = std::min(o.seq_len, o.adopted->config.max_T);
    open_data(p);
    p.config = make_config(family, o, p.train);
    set_delimiter(o, p.train);  // which evaluations use, too
    note_assumed_vocabulary(p);
    check_sharding(o, ranks);
    plan_batch(p);
    plan_length(p);
    if (o.warmup_steps >= 0) o.schedule.warmup_steps = o.warmup_steps;
    warn_of_options(p);

    if (!o.adamw_lr) o.adamw_lr = default_adamw_lr(p.config.C);
    o.optimizer.adamw_lr = *o.adamw_lr;
    p.run.B = std::max(1, o.micro_batch);
    p.run.T = o.seq_len;
    p.run.on_gpu = is_gpu;
    p.run.seed = o.seed;
    const DTypeChoice dtype = storage_of(p);
    p.dtype_reason = dtype.reason;
    o.dtype = p.run.dtype = dtype.dtype;
    // On a CPU the default suits the caches better.
    if (is_gpu) p.run.head_rows = o.head_rows.value_or(kHeadRows);
    p.run.matmul_dtype = o.matmul_dtype;
    p.run.fast_accumulation = o.fast_accumulation;
    CHECK_USAGE(o.offload_blocks <= std::max(0, p.config.L - 2),
                "--offload-blocks {}: of {} layers the last 2 stay on the device; at most {} can be offloaded",
                o.offload_blocks, p.config.L, std::max(0, p.config.L - 2));
    p.run.offloaded_blocks = o.offload_blocks;
    p.run.attention = attention_of(p);
    note_head_size(p);
    note_activation(p);
    const DTypeChoice ns_dtype = ns_dtype_of(p);
    o.optimizer.ns_dtype = ns_dtype.dtype;
    o.ns_dtype.reset();
    if (has_newton_schulz(o.optimizer)) {
        o.ns_dtype = ns_dtype.dtype;  // into config.json, so that a machine of another kind continues in this type
        p.ns_dtype_reason = ns_dtype.reason;
    }
    p.params = decoder_params(p.config);
    note_few_tokens(p);
    p.optimizer_plan = plan_optimizer(p.params, o.optimizer);
    p.placement = place(p.params, p.optimizer_plan, o.optimizer, ranks);
    p.activations = decoder_activations(p.config, p.run);  // throws if flags exclude one another
    return p;
}

void set_delimiter(const Options& o, DataSet& data) {
    if (data.shards.empty()) return;
    CHECK_USAGE(o.delimiter < 0 || data.delimiter < 0 || o.delimiter == data.delimiter,
                "--delimiter {}: {} says {}; leave the flag out to use that", o.delimiter, data.described_by,
                data.delimiter);
    if (o.delimiter >= 0) data.delimiter = o.delimiter;
    CHECK_USAGE(!o.document_mask || data.delimiter >= 0,
                "--document-mask: the folder of {} has no manifest.json that names the delimiter; name it with "
                "--delimiter, or write the manifest with scripts/prepare.py adopt",
                data.shards.front().path);
}

ParamShard shard_of(const RunPlan& p, int rank) {
    ParamShard shard = {.offload = offloads_optimizer(p.options.offload)};
    if (p.ranks == 1) return shard;
    shard.sharding = p.sharding;
    shard.own_parts = p.placement.own_parts(rank);
    return shard;
}

Exchange exchange_of(const RunPlan& p) { return {p.sharding, p.run.dtype, p.options.grad_comm_dtype, p.micro_steps}; }

}  // namespace teon
