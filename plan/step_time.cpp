#include "plan/step_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "kernels/attention/first_key.h"
#include "model/decoder.h"

namespace teon {

namespace {

constexpr int kGpusPerMachine = 8;
constexpr double kNetwork = 40e9;  // bytes/s of a GPU with its own 400 Gbit/s adapter, of which NCCL reaches 80%

// Returns the time of y = x W^T with `rows` rows, of its dX and of its dW. The library's rate depends on the length of
// the sums.
double product_seconds(const GpuRates& gpu, double rows, double out, double in) {
    double seconds = 0;
    for (double K : {in, out, rows}) seconds += 2 * rows * out * in / (gpu.products * K / (K + kHalfK));
    return seconds;
}

// Returns the time of all products of a micro-batch: of the hidden matrices, joined ones as one, and of the head.
double products_seconds(const RunPlan& p, const GpuRates& gpu) {
    const double N = static_cast<double>(p.run.B) * p.run.T;
    double seconds = 0;
    for (int i = 0; i < p.params.count(); ++i) {
        const ParamRow& row = p.params[i];
        if (is_hidden_matrix(row.role)) {
            double out = row.rows;
            for (; i + 1 < p.params.count() && p.params[i + 1].joined; ++i) out += p.params[i + 1].rows;
            seconds += product_seconds(gpu, N, out, row.cols);
        } else if (row.role == Role::head || (row.role == Role::token_embedding && p.config.tied_head)) {
            const double chunk = p.run.head_rows > 0 ? std::min<double>(p.run.head_rows, N) : N;
            seconds += N / chunk * product_seconds(gpu, chunk, row.rows, row.cols);
        }
    }
    return seconds;
}

// Returns the time of attention: two products forward and five backward, of the keys that a row sees. A window has the
// rate of the sequence whose rows see as many keys.
double attention_seconds(const DecoderConfig& c, const DecoderRun& run, const GpuRates& gpu) {
    double seconds = 0;
    for (int l = 0; l < c.L; ++l) {
        const double keys = mean_keys(run.T, c.window_of(l));
        const double T = 2 * keys;
        const double flops = 7 * 2.0 * run.B * run.T * keys * c.attention_width();
        seconds += flops / (gpu.attention * T / (T + gpu.half_T));
    }
    return seconds;
}

// Returns the time of kernels other than products. Bytes per token and layer: 12 C for each of two norms, 10 C for the
// residual stream and the biases, and for the activation 10 F, or 16 F with a gate. Besides, 4 Vp per token for the
// logits, and 8 per parameter for the gradients that a micro-batch adds to.
double passes_seconds(const RunPlan& p, const GpuRates& gpu) {
    const DecoderConfig& c = p.config;
    const double N = static_cast<double>(p.run.B) * p.run.T;
    const double activation = row_of(c.mlp).elements_moved() * static_cast<double>(size_of(DType::bf16));
    return (N * (c.L * (34.0 * c.C + activation * c.F) + 4.0 * c.Vp()) + 8.0 * static_cast<double>(p.params.size())) /
           gpu.memory;
}

// Returns the time of a step's exchange that computation does not hide. compute_seconds: of all passes of a step.
double exchange_seconds(const RunPlan& p, const GpuRates& gpu, double compute_seconds) {
    const Exchange exchange = exchange_of(p);
    const StepTraffic sent_per_step = step_traffic(p.params, p.ranks, exchange);
    const double share = static_cast<double>(p.ranks - 1) / p.ranks;
    double outside_windows = 0;  // elements that a rank sends
    for (const ParamRow& row : p.params.rows())
        if (window_layer(row) < 0) outside_windows += share * static_cast<double>(row.size());

    // Parameters outside of the layers' windows are sent when nothing is left to compute, and so are new weights that
    // the ranks keep.
    const bool each_micro_batch = p.sharding >= Sharding::gradients;
    const bool sends_layers = p.sharding == Sharding::all;  // their weights, for every pass
    const double unhidden_gradients =
        outside_windows * size_of(exchange.gradients) * (each_micro_batch ? p.micro_steps : 1);
    const double unhidden_weights = sends_layers ? outside_windows * size_of(p.run.dtype) : sent_per_step.weights;
    const double unhidden_bytes = unhidden_gradients + unhidden_weights;
    // Computation hides the rest: gradients in the backward pass, two thirds of a micro-batch, weights in any pass.
    const double hiding_share = sends_layers ? 1 : 2.0 / 3;
    const double hiding_seconds = compute_seconds / (each_micro_batch ? 1 : p.micro_steps) * hiding_share;
    const double rate = link_rate(gpu, p.ranks, p.options.bandwidth);
    const double hideable_bytes = sent_per_step.gradients + sent_per_step.weights - unhidden_bytes;
    return unhidden_bytes / rate + std::max(0.0, hideable_bytes / rate - hiding_seconds);
}

}  // namespace

double link_rate(const GpuRates& gpu, int ranks, double gb_per_s) {
    if (gb_per_s > 0) return gb_per_s * 1e9;
    return ranks <= kGpusPerMachine ? gpu.nvlink : std::min(gpu.nvlink, kNetwork);
}

StepTime step_time(const RunPlan& p, const GpuRates& gpu) {
    const double M = p.micro_steps;
    StepTime t;
    t.products = M * products_seconds(p, gpu);
    t.attention = M * attention_seconds(p.config, p.run, gpu);
    t.recomputation = (t.products + t.attention) * recompute_flops_share(p.config, p.run.T, p.run.recompute);
    t.passes = M * passes_seconds(p, gpu);

    // The gradient is read for the norm and for the update; masters and state are read and written; bf16 weights are
    // written. Newton-Schulz counts on the rank with the most work.
    const bool divided = p.sharding != Sharding::none && p.ranks > 1;
    double flops = 0;
    double side = 1;
    for (size_t i = 0; i < p.optimizer_plan.stacks.size(); ++i) {
        const Stack& stack = p.optimizer_plan.stacks[i];
        if (!divided) flops += stack.flops;
        side = std::max<double>(side, std::min(stack.m, stack.n));
    }
    if (divided) flops = *std::max_element(p.placement.load.begin(), p.placement.load.end());
    const double elements = static_cast<double>(p.params.size()) / (divided ? p.ranks : 1);
    const std::vector<int64_t>& of_rank = p.placement.state_bytes;
    const auto state = static_cast<double>(divided ? *std::max_element(of_rank.begin(), of_rank.end())
                                                   : std::accumulate(of_rank.begin(), of_rank.end(), int64_t{0}));
    const bool bf16 = p.run.dtype == DType::bf16;
    t.update = ((bf16 ? 18 : 16) * elements + 2 * state) / gpu.memory + flops / (gpu.products * side / (side + kHalfK));
    // State, and masters if they are not the weights, in both directions at once.
    if (offloads_optimizer(p.options.offload)) t.pcie = ((bf16 ? 4 : 0) * elements + state) / gpu.pcie;
    // A block's activations are copied while other blocks compute. The first and the last block of a pass hide nothing.
    t.copies_each_way = M * static_cast<double>(p.activations.offloaded_bytes()) / gpu.pcie;
    const double computes = t.products + t.attention + t.passes;
    const double hidden = std::max(0.0, 1 - 2.0 / p.config.L);
    for (const double pass : {computes / 3, computes * 2 / 3 + t.recomputation})
        t.copies += std::max(0.0, t.copies_each_way - hidden * pass);
    if (p.ranks > 1) t.exchange = exchange_seconds(p, gpu, computes + t.recomputation);
    return t;
}

bool predicts_step_time(const RunPlan& p) {
    return p.run.dtype == DType::bf16 && p.run.attention == AttentionKind::flash;
}

double peak_tokens_per_s(const RunPlan& plan, double device_flops) {
    return plan.ranks * device_flops / decoder_flops_per_token(plan.config, plan.run.T);
}

std::string step_time_table(const RunPlan& p, const GpuModel& gpu) {
    const StepTime t = step_time(p, gpu.rates);
    const bool is_known = predicts_step_time(p);
    const char* fp8 =
        p.run.matmul_dtype == MatmulDType::same ? "" : "; products at the rate of bf16, as that of FP8 is unknown";
    std::string out = is_known ? fmt::format("expected time of a step on {}, not measured{}\n", p.options.plan_for, fp8)
                               : "expected time of a step: known only for --dtype bf16 with flash attention\n";
    const auto line = [&](const std::string& name, double seconds, const std::string& more = "") {
        if (seconds > 0 || !more.empty()) out += fmt::format("  {:<30}{:>9.2f} ms{}\n", name, 1e3 * seconds, more);
    };
    line("offloaded state over PCIe", t.pcie);
    if (!is_known) {
        line("activations over PCIe, each way", t.copies_each_way);
        const double pcie = t.pcie + 2 * t.copies_each_way;
        const double tokens = static_cast<double>(p.options.batch_tokens);
        return out + (pcie > 0 ? fmt::format("  PCIe allows at most {} tokens/s\n", count_text(tokens / pcie)) : "");
    }
    if (t.copies_each_way > 0)
        line("activations, PCIe, not hidden", t.copies, fmt::format(" of {:.2f} ms each way", 1e3 * t.copies_each_way));
    line("products", t.products);
    line("attention", t.attention);
    line("recomputation", t.recomputation);
    line("other passes over memory", t.passes);
    line("update", t.update);
    if (p.ranks > 1)
        line(fmt::format("exchange, {:g} GB/s, not hidden", 1e-9 * link_rate(gpu.rates, p.ranks, p.options.bandwidth)),
             t.exchange);
    const double total = t.total();
    const double wide = std::exp(gpu.spread);
    const double tokens = static_cast<double>(p.options.batch_tokens) / total;
    const std::string step =
        fmt::format("step {:.1f} ms ({:.1f} to {:.1f}), {} tokens/s ({} to {}){}", 1e3 * total, 1e3 * total / wide,
                    1e3 * total * wide, count_text(tokens), count_text(tokens / wide), count_text(tokens * wide),
                    p.ranks > 1 ? fmt::format(", {} of each rank", count_text(tokens / p.ranks)) : "");
    return out + "  " + wrapped(step, 4, text_width()) + "\n";
}

}  // namespace teon
