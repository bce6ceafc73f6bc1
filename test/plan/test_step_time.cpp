#include "plan/step_time.h"

#include <cmath>

#include "plan/memory.h"
#include "plan/report.h"
#include "test/support/catch.h"
#include "test/support/parse.h"

using namespace teon;
using namespace teon::test;

TEST_CASE("plan/memory: --plan-for plans for a GPU as a run there would, whatever this build's backend") {
    const Options o = *parse({"--plan-for", "h100", "--model", "1b", "--steps", "10"}, kLlama);
    REQUIRE(o.plan_only);
    REQUIRE(complaint({"--plan-for", "v100"})
                .find("--plan-for v100: must be one of h100, h200, a100, b200, l40s, rtx4090, "
                      "rtx5090") == 0);
    const Options small = *parse({"--plan-for", "h100", "--model", "130m", "--steps", "10"}, kLlama);
    for (const GpuModel& gpu : kGpus) {
        const std::string name = short_name(gpu.sheet);
        const DeviceInfo device = device_of(gpu.sheet);
        INFO(name);
        // Rates within their data sheets, and a wider range where only these are known.
        REQUIRE(gpu.rates.products < device.peak_bf16_flops);
        REQUIRE(gpu.rates.attention < gpu.rates.products);
        REQUIRE((gpu.spread > 2 * kStepTimeSpread) == (name != "H100" && name != "H200" && name != "A100"));
        const bool is_large = device.total_bytes > size_t{70} << 30;
        RunPlan plan = plan_run(kLlama, is_large ? o : small, true, 1);
        plan_memory(plan, usable_bytes(device, 1, 1), &gpu.rates);
        REQUIRE(memory_bytes(plan) < static_cast<int64_t>(device.total_bytes));
        REQUIRE(plan.run.attention == AttentionKind::flash);
        if (!is_large) continue;
        REQUIRE(plan.run.dtype == DType::bf16);
        REQUIRE(plan.options.batch_tokens == 524288);
        REQUIRE(memory_bytes(plan) > int64_t{16} << 30);  // masters, gradients and AdamW's moments alone
        REQUIRE(!plan.host_memory.empty());
    }
    REQUIRE(plan_run(kLlama, o, false, 1).run.attention == AttentionKind::gemm);
}

TEST_CASE("plan/step_time: MFU counts the devices of all ranks") {
    // 797.82 MFLOP per token of GPT-2 124M at 1,024 tokens: the function of megatron-core 0.19.2 for the same model.
    const Options o = *parse({"--plan-for", "h100", "--model", "small", "--vocab-size", "50257", "--steps", "10"});
    for (const int ranks : {1, 2, 8}) {
        const RunPlan plan = plan_run(kGpt2, o, true, ranks);
        const double expected = ranks * 989e12 / 797.82e6;
        REQUIRE(std::abs(peak_tokens_per_s(plan, 989e12) / expected - 1) < 1e-5);
        REQUIRE(peak_tokens_per_s(plan, 0) == 0);
    }
}

TEST_CASE("plan/step_time: without offload no copies take time, however few layers there are") {
    for (const char* layers : {"1", "2", "3"})
        for (const std::string& name : plan_names()) {
            const GpuModel& gpu = *known_gpu(name);
            const Options o = *parse({"--plan-for", name, "--layers", layers, "--steps", "10"});
            const RunPlan plan = make_plan(kGpt2, o, true, int64_t{gpu.sheet.memory_mib} << 20);
            const StepTime t = step_time(plan, gpu.rates);
            REQUIRE(t.copies == 0);
            REQUIRE(t.total() == t.products + t.attention + t.recomputation + t.passes + t.update);
        }
}

TEST_CASE("plan/step_time: --shard auto takes the first that fits and is at most 2% slower than the fastest") {
    const GpuModel& h100 = *known_gpu("h100");
    const int64_t memory = usable_bytes(device_of(h100.sheet), 8, 8);
    const auto plan = [&](const std::string& flags, const GpuRates* gpu) {
        return make_plan(kLlama,
                         *parse(words("--plan-only --steps 10 --dtype bf16 --attention flash " + flags), kLlama), true,
                         memory, 8, gpu);
    };
    for (const std::string model : {"--model 130m --optimizer muon ", "--model 1b --optimizer muon ", "--model 7b "}) {
        INFO(model);
        std::vector<std::pair<Sharding, double>> fitting;
        for (const Sharding sharding : {Sharding::optimizer, Sharding::gradients, Sharding::all}) {
            RunPlan fixed;
            const std::string refusal = error_of<UsageError>(
                [&] { fixed = plan(model + "--shard " + std::string(name_of(sharding)), &h100.rates); });
            if (!refusal.empty()) continue;
            fitting.push_back({sharding, step_time(fixed, h100.rates).total()});
        }
        double shortest = fitting.front().second;
        for (const auto& [sharding, seconds] : fitting) shortest = std::min(shortest, seconds);
        Sharding expected = Sharding::none;
        for (const auto& [sharding, seconds] : fitting)
            if (expected == Sharding::none && seconds <= 1.02 * shortest) expected = sharding;
        REQUIRE(plan(model, &h100.rates).sharding == expected);
        REQUIRE(plan(model, nullptr).sharding == fitting.front().first);
        REQUIRE(contains(plan_report(plan(model, &h100.rates)), std::string(name_of(expected)) + " (--shard auto)"));
        if (model == "--model 7b ") REQUIRE(expected != fitting.front().first);
    }
}
