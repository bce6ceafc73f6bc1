#include "plan/whole_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

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

// Returns what the expected time of a run leaves unknown, or an empty string.
std::string unknown_time(const RunPlan& p, const GpuModel* gpu) {
    if (!gpu) return "not predicted without --plan-for; --steps 20 measures tokens/s";
    if (!predicts_step_time(p)) return "not predicted: only for --dtype bf16 with flash attention";
    return p.steps > 0 ? "" : "unknown until --tokens, --steps or the data give the length";
}

// "1.23 hours (1.08 to 1.4)", three digits without an exponent
std::string range_text(double expected, const GpuModel& gpu, std::string_view unit) {
    const double wide = std::exp(gpu.spread);
    const auto digits = [](double x) { return fmt::format("{:g}", std::stod(fmt::format("{:.3g}", x))); };
    return fmt::format("{}{} ({} to {})", digits(expected), unit, digits(expected / wide), digits(expected * wide));
}

double hours_of(const RunPlan& p, const GpuModel& gpu) {
    return (static_cast<double>(p.steps) + evaluation_steps(p)) * step_time(p, gpu.rates).total() / 3600;
}

std::string time_text(const RunPlan& p, const GpuModel& gpu) {
    const double hours = hours_of(p, gpu);
    const std::string all = p.ranks > 1 ? ", " + range_text(hours * p.ranks, gpu, " GPU hours") : "";
    return fmt::format("{} on {} {}{}, not measured", range_text(hours, gpu, " hours"), p.ranks, p.options.plan_for,
                       all);
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
    // One by the clock stays until the next is written; the best one stays.
    const int64_t others = (o.checkpoint_minutes > 0) + o.keep_best;
    if (o.keep_last == 0 || by_step <= o.keep_last) return by_step + others;
    // Older checkpoints are removed once a new one is whole.
    const int64_t multiples = o.keep_every > 0 ? steps / std::lcm(every, o.keep_every) : 0;
    return std::min(by_step + others, o.keep_last + 1 + multiples + o.keep_best);
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
    const std::string unknown = unknown_time(p, gpu);
    line("time", unknown.empty() ? time_text(p, *gpu) : unknown);
    if (p.options.price > 0)
        line("cost", unknown.empty() ? fmt::format("{} at {:g} per GPU and hour",
                                                   range_text(hours_of(p, *gpu) * p.ranks * p.options.price, *gpu, ""),
                                                   p.options.price)
                                     : unknown);
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
