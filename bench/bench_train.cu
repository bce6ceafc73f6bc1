// Profiles a training step on this machine:  build/cpu/bench/bench_train
//
// Trains a GPT-2 with 256 channels, 4 layers and vocabulary 256 on 8 sequences of 256 tokens, in float and in bf16
// (bench/bench_train.py compares its tokens/s with PyTorch's). Prints the share and the rate of matrix products, and
// the time of every other kernel that takes at least 1% of a step. Then measures the same step with 1, 2, 4, ...
// threads, up to one per core, in turns: the time of the fastest step, because other work on the machine only makes
// steps slower, and how many times as fast that is as with one thread.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "bench/benchmark.h"
#include "bench/training_step.h"
#include "model/decoder.h"
#include "model/gpt2.h"
#include "runtime/cuda/profiler.h"
#include "runtime/simt.h"

using namespace teon;

namespace {

// Returns a kernel's name without its template arguments.
std::string family(const std::string& name) { return name.substr(0, name.find('<')); }

void report_threads(bench::TrainingStep& step) {
    constexpr int kTurns = 5;
    constexpr int kSteps = 4;
    const int cores = set_simt_threads(1);
    std::map<int, double> fastest;  // by the number of threads
    for (int turn = 0; turn < kTurns; ++turn) {
        for (int threads = 1; threads <= cores; threads *= 2) {
            set_simt_threads(threads);
            const double ms = step.fastest_ms(kSteps);
            double& of_all = fastest.try_emplace(threads, ms).first->second;
            of_all = std::min(of_all, ms);
        }
    }
    set_simt_threads(cores);
    for (const auto& [threads, ms] : fastest)
        fmt::print("  {} thread{}: {:.1f} ms, {:.2f} times one\n", threads, threads == 1 ? "" : "s", ms,
                   fastest[1] / ms);
}

void report(const DecoderConfig& c, DType dtype) {
    constexpr int kSteps = 12;
    const DecoderRun run{8, c.max_T, dtype};
    bench::TrainingStep step(c, run, 1);
    step.median_ms(kSteps);  // warm-up
    const double ms = step.median_ms(kSteps);
    Profiler profiler(step.context.stream);
    step.median_ms(kSteps);
    const Profile profile = profiler.result();
    double products = 0;
    double gemm_ms = 0;
    double flops = 0;
    std::map<std::string, double> outside;
    for (const Profile::Row& row : profile.rows) {
        if (row.flops == 0) {
            outside[family(row.name)] += row.ms / kSteps;
            continue;
        }
        products += static_cast<double>(row.calls) / kSteps;
        gemm_ms += row.ms / kSteps;
        flops += row.flops / kSteps;
    }
    fmt::print("GPT-2 {:.2f}M, {} x {} tokens, {}, AdamW: {:.1f} ms/step, {:.0f} tokens/s\n",
               static_cast<double>(step.table().logical_size()) / 1e6, run.B, run.T, name_of(dtype), ms,
               static_cast<double>(step.tokens()) / ms * 1000);
    fmt::print("in {:.0f} products {:.1f} ms ({:.0f}%, {:.0f} GFLOP/s), outside {:.1f} ms:\n", products, gemm_ms,
               100 * gemm_ms * kSteps / profile.ms, flops / gemm_ms / 1e6, profile.ms / kSteps - gemm_ms);
    std::vector<std::pair<double, std::string>> rows;
    for (const auto& [name, kernel_ms] : outside) rows.emplace_back(kernel_ms, name);
    std::sort(rows.rbegin(), rows.rend());
    for (const auto& [kernel_ms, name] : rows) {
        if (kernel_ms >= 0.01 * ms) fmt::print("  {:7.2f} ms  {}\n", kernel_ms, name);
    }
    if (!device_info().is_gpu) report_threads(step);
}

}  // namespace

int main() {
    return bench::run_main([] {
        DecoderConfig c = gpt2_family().config("tiny");
        c.C = 256;
        c.F = 4 * c.C;
        c.NH = c.NKV = 8;
        c.V = 256;
        c.max_T = 256;
        for (const DType dtype : {DType::f32, DType::bf16}) report(c, dtype);
    });
}
