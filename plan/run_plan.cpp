#include "plan/run_plan.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <filesystem>

#include "base/text.h"
#include "kernels/attention_flash.h"
#include "optim/methods.h"
#include "runtime/linalg_library.h"

namespace teon {

namespace {

namespace fs = std::filesystem;

constexpr int kHeadRows = 8192;  // rows of logits that a GPU computes at a time

// Throws UsageError if a given flag contradicts the model of --init-from; flags may repeat its values.
void check_agrees(const ModelFamily& family, const Options& o, const DecoderConfig& model) {
    const bool preset = o.given.count("--model") > 0;
    const DecoderConfig wanted = with_fields(family.fields, preset ? family.config(o.model) : model, o.fields);
    for (const ModelField& f : family.fields) {
        if (!family.has_flag(f)) continue;
        const bool given = o.given.count(f.flag()) > 0;
        CHECK_USAGE(f.get(wanted) == f.get(model) || !(given || (preset && f.in_preset)),
                    "{} {}: the model of --init-from has {}; leave the flag out to take it as it is",
                    given ? f.flag() : fmt::format("--model {} with {}", o.model, f.key), f.text(wanted),
                    f.text(model));
    }
}

DecoderConfig make_config(const ModelFamily& family, const Options& o, const DataSet& data) {
    DecoderConfig c;
    if (o.adopted) {
        c = o.adopted->config;
        check_agrees(family, o, c);
        CHECK_USAGE(o.seq_len <= c.max_T, "--seq-len {}: the model of --init-from has a context of {}", o.seq_len,
                    c.max_T);
        check_model_tokenizer(data, o.adopted->folder, c.V);
    } else {
        c = with_fields(family.fields, family.config(o.model), o.fields);
        const bool given = o.fields.contains("vocab_size");
        CHECK_USAGE(!given || c.V >= data.vocab_size,
                    "--vocab-size {}: the data's manifest.json says {}; leave the flag out to use that", c.V,
                    data.vocab_size);
        if (!given && data.vocab_size) c.V = data.vocab_size;
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
        } else if (fs::is_directory(o.data)) {
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
    CHECK_USAGE(p.val.mixture.empty(), "--val-data {}: a mixture cannot be evaluated; name the sources without weights",
                o.val_data);
    check_same_tokenizer(p.train, p.val);
    check_disjoint(p.train, p.val);
    if (!o.plan_only)
        for (DataSet* data : {&p.train, &p.val}) identify(*data);
    for (const ShardInfo& shard : p.train.shards) p.data_tokens += shard.tokens;
}

void check_sharding(const Options& o, int ranks) {
    CHECK_USAGE(ranks == 1 || o.shard != Sharding::all || !needs_whole_weights(o),
                "{}: needs all weights on each rank, but --shard all divides them; use --shard gradients",
                o.check_ranks ? "--check-ranks" : "--sample-every");
    // Each rank chooses algorithms by its own times, and different algorithms sum in different orders.
    CHECK_USAGE(ranks == 1 || o.shard != Sharding::none || !o.autotune || !info_of(o.optimizer.method).matrices,
                "--autotune: with --shard none each rank updates all matrices, and its own choice of algorithms would "
                "change their last bits; use --shard optimizer");
}

// Returns the given storage type, else one that suits the planned device, which need not be this machine's.
DTypeChoice storage_of(const RunPlan& p) {
    if (p.options.dtype || p.is_gpu == (std::string_view(backend_name()) == "cuda"))
        return choose_dtype(p.options.dtype);
    return p.is_gpu ? DTypeChoice{DType::bf16, "a GPU multiplies bf16 in hardware"}
                    : DTypeChoice{DType::f32, "not every CPU multiplies bf16 in hardware"};
}

AttentionKind attention_of(const RunPlan& p) {
    const DecoderConfig& c = p.config;
    const bool tensor_cores = p.is_gpu && flash_attention_supports({1, p.run.T, c.NH, c.NKV, c.HS()}, p.run.dtype);
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
                            ways.empty() ? "" : fmt::format("; {} would have it", fmt::join(ways, " or "))));
}

}  // namespace

RunPlan plan_run(const ModelFamily& family, const Options& options, bool is_gpu, int ranks) {
    RunPlan p;
    p.family = &family;
    p.options = options;
    p.is_gpu = is_gpu;
    p.ranks = ranks;
    Options& o = p.options;
    if (o.adopted && !o.given.count("--seq-len")) o.seq_len = std::min(o.seq_len, o.adopted->config.max_T);
    open_data(p);
    p.config = make_config(family, o, p.train);
    if (!p.train.shards.empty()) check_document_mask(o, p.train);
    check_sharding(o, ranks);
    plan_batch(p);
    plan_length(p);

    if (!o.adamw_lr) o.adamw_lr = default_adamw_lr(p.config.C);
    o.optimizer.adamw_lr = *o.adamw_lr;
    p.run.B = std::max(1, o.micro_batch);
    p.run.T = o.seq_len;
    const DTypeChoice dtype = storage_of(p);
    p.dtype_reason = dtype.reason;
    o.dtype = p.run.dtype = dtype.dtype;
    // On a CPU the default suits the caches better.
    if (is_gpu) p.run.head_rows = o.head_rows.value_or(kHeadRows);
    p.run.gelu_fusion = o.gelu_fusion;
    p.run.matmul_dtype = o.matmul_dtype;
    CHECK_USAGE(o.offload_blocks <= std::max(0, p.config.L - 2),
                "--offload-blocks {}: of {} layers the last 2 stay on the device; at most {} can be offloaded",
                o.offload_blocks, p.config.L, std::max(0, p.config.L - 2));
    p.run.offloaded_blocks = o.offload_blocks;
    p.run.attention = attention_of(p);
    note_head_size(p);
    o.optimizer.ns_dtype = is_gpu ? DType::f16 : DType::f32;
    p.params = decoder_params(p.config);
    p.optimizer_plan = plan_optimizer(p.params, o.optimizer);
    p.placement = place(p.params, p.optimizer_plan, o.optimizer, ranks);
    p.activations = decoder_activations(p.config, p.run);  // throws if flags exclude one another
    return p;
}

void check_document_mask(const Options& o, const DataSet& data) {
    CHECK_USAGE(!o.document_mask || data.delimiter >= 0,
                "--document-mask: the folder of {} has no manifest.json that names the delimiter; make the shards with "
                "scripts/prepare.py",
                data.shards.front().path);
}

ParamShard shard_of(const RunPlan& p, int rank) {
    ParamShard shard = {.offload = p.options.offload.optimizer};
    if (p.ranks == 1) return shard;
    shard.sharding = p.sharding;
    shard.own = Ownership(p.params, p.optimizer_plan, p.placement, p.options.optimizer).of(rank);
    return shard;
}

Exchange exchange_of(const RunPlan& p) { return {p.sharding, p.run.dtype, p.options.grad_comm_dtype, p.micro_steps}; }

}  // namespace teon
