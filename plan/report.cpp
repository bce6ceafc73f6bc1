#include "plan/report.h"

#include <fmt/core.h>

#include "base/text.h"
#include "model/decoder.h"
#include "optim/methods.h"
#include "plan/memory.h"
#include "plan/step_time.h"
#include "plan/whole_run.h"

namespace teon {

namespace {

// Returns memory and cost of the plan and of each policy for all blocks: "none, cheap in the first 3 blocks: 2.8 GiB
// (all blocks: none 3.1 GiB, cheap 2.2 GiB, block 0.9 GiB with 24% more arithmetic)".
std::string recompute_text(const RunPlan& p) {
    auto cost = [&](const RecomputePlan& recompute) {
        DecoderRun run = p.run;
        run.recompute = recompute;
        const double more = 100 * recompute_flops_share(p.config, p.run.T, recompute);
        return bytes_text(static_cast<double>(decoder_activations(p.config, run).total_bytes())) +
               (more > 0 ? fmt::format(" with {:.0f}% more arithmetic", more) : "");
    };
    std::vector<std::string> all;
    for (Recompute policy : {Recompute::none, Recompute::cheap, Recompute::block})
        all.push_back(fmt::format("{} {}", name_of(policy), cost(policy)));
    const bool mixed = p.run.recompute.first_blocks > 0;
    return fmt::format("{}{} (all blocks: {})", text(p.run.recompute), mixed ? ": " + cost(p.run.recompute) : "",
                       joined(all, ", "));
}

// "teon: lr 0.005, weight decay 0.1 for hidden matrices; adamw: lr 0.0006, weight decay 0.1 for the rest; ..."
std::string optimizer_text(const OptimizerOptions& o) {
    const MethodInfo& method = info_of(o.method);
    const auto rates = [](std::string_view name, float lr, float decay) {
        return fmt::format("{}: lr {}, weight decay {}", name, as_written(lr), as_written(decay));
    };
    std::string text = rates(name_of(o.method), o.lr, o.weight_decay);
    if (method.orthogonalizes)
        text += " for hidden matrices; " +
                rates(method.elements->name, o.adamw_lr, o.adamw_weight_decay.value_or(o.weight_decay)) +
                " for the rest";
    for (const auto& [role, factor] : o.lr_scale)
        text += fmt::format("{}{} x {}", role == o.lr_scale.begin()->first ? "; lr of " : ", ", name_of(role),
                            as_written(factor));
    return text;
}

// What the update of hidden matrices is, and whose.
std::string update_text(const Options& o) {
    if (!o.like.empty()) return o.like_text;
    const OptimizerOptions& u = o.optimizer;
    const OptimizerOptions defaults;
    const bool is_default = u.ortho == defaults.ortho && !u.nesterov && scale_of(u) == defaults.update_scale &&
                            u.decay_at == defaults.decay_at && u.momentum_warmup == 0 && !has_neuron_norm(u) &&
                            !u.equalize_rows;
    return fmt::format("{} of the momentum{}, scale {}; {}--like keller is what most know as Muon", name_of(u.ortho),
                       u.nesterov ? fmt::format(" with Nesterov ({})", name_of(u.nesterov_form)) : "",
                       name_of(scale_of(u)), is_default ? "as in the Teon paper; " : "");
}

// "cosine to 0.1 of the peak, after 10 of 100 steps of warmup"
std::string schedule_text(const RunPlan& p) {
    const Schedule& s = p.options.schedule;
    std::string text(name_of(s.kind));
    if (row_of(s.kind).fall) text += fmt::format(" to {} of the peak", s.min_lr_ratio);
    if (p.steps == 0 && s.warmup_steps < 0) return text + fmt::format(", warmup {} of the steps", s.warmup_ratio);
    if (p.steps == 0) return text + fmt::format(", warmup of {} steps", s.warmup_steps);
    text += fmt::format(", warmup {} of {} steps", warmup_steps(s, p.steps), p.steps);
    if (row_of(s.kind).holds_peak) text += fmt::format(", decay after step {}", steps_before_decay(s, p.steps));
    return text;
}

// The report; each call adds a line, wrapped to the terminal.
struct ReportLines {
    std::string text;
    void operator()(std::string_view name, const std::string& value) {
        text += fmt::format("{:<12}{}\n", name, wrapped(value, 12, text_width()));
    }
};

void report_data(const RunPlan& p, ReportLines& line) {
    const Options& o = p.options;
    if (!p.train.shards.empty())
        line("data", fmt::format("{} tokens in {} shard{}{}", count_text(static_cast<double>(p.data_tokens)),
                                 p.train.shards.size(), p.train.shards.size() == 1 ? "" : "s",
                                 p.val.shards.empty() ? ", no validation data"
                                                      : fmt::format(", {} validation windows", p.eval_windows)));
    for (size_t i = 0; i < p.train.mixture.size(); ++i) {
        int64_t windows = 0;
        for (const ShardInfo& shard : p.train.shards)
            if (shard.source == static_cast<int>(i)) windows += (shard.tokens - 1) / o.seq_len;
        const int64_t sequences = p.steps * (o.batch_tokens / o.seq_len);
        const double seen = p.train.mixture[i] * static_cast<double>(sequences);
        line("", fmt::format("{:.4g}% of {}: {:.2f} epochs", 100 * p.train.mixture[i], p.train.sources[i],
                             seen / static_cast<double>(windows)));
    }
}

// Types, kernels and what saves memory.
void report_device(const RunPlan& p, ReportLines& line) {
    const DecoderConfig& c = p.config;
    const Options& o = p.options;
    line("dtype", fmt::format("{} ({})", name_of(p.run.dtype), p.dtype_reason));
    if (!p.ns_dtype_reason.empty())
        line("NS dtype", fmt::format("{} ({})", name_of(o.optimizer.ns_dtype), p.ns_dtype_reason));
    if (o.matmul_dtype != MatmulDType::same)
        line("products",
             fmt::format("of blocks in FP8: e4m3, gradients {}{}", o.matmul_dtype == MatmulDType::fp8 ? "e5m2" : "e4m3",
                         o.fast_accumulation ? ", fast accumulation" : ""));
    line("attention", fmt::format("{}{}", name_of(p.run.attention),
                                  c.dropout > 0 && p.is_gpu ? ", slower than flash, which has no dropout" : ""));
    if (c.dropout > 0)
        line("dropout", fmt::format("{:g} of embedding, attention probabilities and branches", c.dropout));
    line("recompute", recompute_text(p));
    if (offloads_activations(o.offload))
        line("offload",
             p.run.offloaded_blocks == 0
                 ? "activations of no block, since all fit"
                 : fmt::format("activations of {} of {} blocks{}, {} to the host and back in each micro-batch",
                               p.run.offloaded_blocks, c.L, o.offload_blocks ? "" : " (the fewest that fit)",
                               bytes_text(static_cast<double>(p.activations.offloaded_bytes()))));
    const int64_t logits_bytes = p.activations.shared_bytes(Shared::logits);
    line("head", fmt::format("{} rows of logits at a time, {}", logits_bytes / (c.Vp() * size_of(p.run.dtype)),
                             bytes_text(static_cast<double>(logits_bytes))));
    if (p.ranks > 1)
        line("sharding", fmt::format("{}{}{}", name_of(p.sharding), o.shard ? "" : " (--shard auto)",
                                     p.sharding >= Sharding::gradients && p.micro_steps > 1
                                         ? ", adds micro-batches after ranks: other last bits than none and optimizer"
                                         : ""));
}

std::string memory_text(const RunPlan& p) {
    std::string out = p.ranks > 1 ? "memory of the rank with the most\n" : "memory\n";
    const auto line = [&](std::string_view name, int64_t bytes) {
        out += fmt::format("  {:<30}{:>12}\n", name, bytes_text(static_cast<double>(bytes)));
    };
    for (const auto& [part, bytes] : p.memory) line(name_of(part), bytes);
    line("total", memory_bytes(p));
    if (!p.host_memory.empty()) out += "memory of the host, pinned, of rank 0\n";
    for (const auto& [part, bytes] : p.host_memory) line(name_of(part), bytes);
    return out;
}

}  // namespace

std::string plan_report(const RunPlan& p) {
    const DecoderConfig& c = p.config;
    const Options& o = p.options;
    ReportLines line;
    line("model",
         fmt::format("{} {}: {} layers, {} channels, {} heads{}, MLP {}, vocabulary {}, context {}", c.family, c.preset,
                     c.L, c.C, c.NH, c.NKV == c.NH ? "" : fmt::format(" ({} key/value)", c.NKV), c.F, c.V, c.max_T));
    line("parameters", fmt::format("{} ({}), stored as {}", p.params.logical_size(),
                                   count_text(static_cast<double>(p.params.logical_size())), name_of(p.run.dtype)));
    report_data(p, line);
    const int ranks = p.ranks;
    line("step", fmt::format("{} tokens = {}{} x {} sequences of {}", o.batch_tokens,
                             ranks > 1 ? fmt::format("{} ranks x ", ranks) : "", p.micro_steps, p.run.B, o.seq_len));
    if (p.steps)
        line("length",
             fmt::format("{} steps = {} tokens{}", p.steps, count_text(static_cast<double>(p.steps * o.batch_tokens)),
                         p.data_tokens ? fmt::format(" = {:.2f} epochs", static_cast<double>(p.steps * o.batch_tokens) /
                                                                             static_cast<double>(p.data_tokens))
                                       : ""));
    line("optimizer", optimizer_text(o.optimizer));
    if (info_of(o.optimizer.method).orthogonalizes) line("update", update_text(o));
    line("schedule", schedule_text(p));
    line("clipping", o.grad_clip > 0 ? fmt::format("gradient norm at most {}", as_written(o.grad_clip)) : "none");
    line("seed", fmt::format("{}", o.seed));
    line("checkpoints",
         fmt::format("{}{}{}{}", o.checkpoint_end ? "at the end" : "none at the end",
                     o.checkpoint_every ? fmt::format(", every {} steps", o.checkpoint_every) : "",
                     o.checkpoint_minutes > 0
                         ? fmt::format(", after {:g} minutes without one (replaced by the next)", o.checkpoint_minutes)
                         : "",
                     o.keep_best ? fmt::format(", of the lowest validation loss{}",
                                               o.is_chosen("--keep-best") ? "" : " (several epochs; --keep-best off)")
                                 : ""));
    report_device(p, line);
    line.text += memory_text(p);
    line.text += plan_table(p.params, p.optimizer_plan, o.optimizer);
    if (ranks > 1) line.text += placement_table(p.params, p.placement, exchange_of(p), o.bandwidth);
    const GpuModel* const planned_for = known_gpu(o.plan_for);
    if (planned_for) line.text += step_time_table(p, *planned_for);
    if (o.plan_only) line.text += whole_run_table(p, planned_for);
    for (const auto& [name, text] : p.notes) line(name, text);
    return line.text;
}

}  // namespace teon
