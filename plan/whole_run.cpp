#include "plan/whole_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "model/decoder.h"
#include "plan/step_time.h"

namespace teon {

namespace {

// A forward pass has a third of a step's products.
double evaluation_steps(const RunPlan& p) {
    const Options& o = p.options;
    const double evaluations =
        1 + (o.eval_every > 0 ? std::floor(static_cast<double>((p.steps - 1) / o.eval_every)) : 0);
    return evaluations * static_cast<double>(p.eval_windows * o.seq_len) / (3.0 * static_cast<double>(o.batch_tokens));
}

std::string bytes_on_disk(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

std::string time_text(const RunPlan& p, const GpuModel* gpu) {
    if (!gpu) return "not predicted without --plan-for; --steps 20 measures tokens/s";
    if (!predicts_step_time(p)) return "not predicted: only for --dtype bf16 with flash attention";
    if (p.steps == 0) return "unknown until --tokens, --steps or the data give the length";
    const double steps = static_cast<double>(p.steps) + evaluation_steps(p);
    const double wide = std::exp(gpu->spread);
    const double hours = steps * step_time(p, gpu->rates).total() / 3600;
    std::string text = fmt::format("{:.3g} hours ({:.3g} to {:.3g}) on {} {}", hours, hours / wide, hours * wide,
                                   p.ranks, p.options.plan_for);
    if (p.ranks > 1)
        text += fmt::format(", {:.3g} GPU hours ({:.3g} to {:.3g})", hours * p.ranks, hours * p.ranks / wide,
                            hours * p.ranks * wide);
    return text + ", not measured";
}

std::string data_text(const RunPlan& p) {
    if (!p.train.shards.empty()) {
        int64_t bytes = 0;
        for (const DataSet* data : {&p.train, &p.val})
            for (const ShardInfo& shard : data->shards)
                bytes += kShardHeaderBytes + shard.tokens * shard.bytes_per_token;
        return bytes_on_disk(bytes) + " on disk";
    }
    const int64_t tokens = p.steps * p.options.batch_tokens;
    return tokens > 0 ? fmt::format("{} on disk if each token is seen once",
                                    bytes_on_disk(tokens * (p.config.V > 65536 ? 4 : 2)))
                      : "unknown";
}

}  // namespace

int64_t most_checkpoints(const RunPlan& p) {
    const Options& o = p.options;
    const int64_t every = o.checkpoint_every;
    const int64_t steps = std::max<int64_t>(p.steps, 1);
    const int64_t after_last = every > 0 ? steps % every != 0 : 1;  // the end's, unless it is one of the others
    const int64_t by_step = (every > 0 ? steps / every : 0) + (o.checkpoint_end ? after_last : 0);
    if (o.keep_last == 0 || by_step <= o.keep_last)
        return by_step + (o.checkpoint_minutes > 0);  // one by the clock stays until the next is written
    // Older checkpoints are removed once a new one is whole.
    const int64_t multiples = o.keep_every > 0 ? steps / std::lcm(every, o.keep_every) : 0;
    return std::min(by_step + (o.checkpoint_minutes > 0), o.keep_last + 1 + multiples);
}

int64_t checkpoint_bytes(const RunPlan& p) {
    const std::vector<int64_t>& state = p.placement.state_bytes;  // by rank
    return 4 * p.params.logical_size() + std::accumulate(state.begin(), state.end(), int64_t{0});
}

std::string whole_run_table(const RunPlan& p, const GpuModel* gpu) {
    std::string out = "the whole run\n";
    const auto line = [&](std::string_view name, const std::string& value) {
        out += fmt::format("  {:<14}{}\n", name, wrapped(value, 16, text_width()));
    };
    line("time", time_text(p, gpu));
    if (gpu && predicts_step_time(p)) {
        const double speed = static_cast<double>(p.options.batch_tokens) / step_time(p, gpu->rates).total();
        const double share = speed / peak_tokens_per_s(p, gpu->sheet.tflops * 1e12);
        line("speed", fmt::format("{} tokens/s, {:.1f}% MFU", count_text(speed), 100 * share));
    }
    line("data", data_text(p));
    const int64_t each = checkpoint_bytes(p);
    const int64_t count = most_checkpoints(p);
    line("checkpoints",
         fmt::format("at most {} x {} = {} on disk", count, bytes_on_disk(each), bytes_on_disk(count * each)));
    return out;
}

}  // namespace teon
