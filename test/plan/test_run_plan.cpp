#include "plan/run_plan.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/decoder.h"
#include "model/families.h"
#include "plan/gpus.h"
#include "plan/report.h"
#include "plan/step_time.h"
#include "test/support/catch.h"
#include "test/support/parse.h"

using namespace teon;
using namespace teon::test;

TEST_CASE("plan/run_plan: without --batch-tokens a step suits the device") {
    auto tokens = [](const ModelFamily& family, std::vector<std::string> flags, bool is_gpu, int ranks = 1) {
        flags.insert(flags.end(), {"--plan-only", "--steps", "10"});
        const RunPlan s = make_plan(family, *parse(flags, family), is_gpu, int64_t{1} << 40, ranks);
        REQUIRE(s.options.batch_tokens % (int64_t{s.run.T} * ranks * s.run.B) == 0);
        return s.options.batch_tokens;
    };
    REQUIRE(tokens(kGpt2, {}, true) == 524288);
    REQUIRE(tokens(kGpt2, {"--seq-len", "1000"}, true) == 524000);
    REQUIRE(tokens(kGpt2, {}, true, 3) == 523264 - 523264 % 3072);
    for (const ModelFamily& family : {kGpt2, kLlama})
        for (const DecoderConfig& preset : family.presets)
            for (int ranks : {1, 2}) {
                const int64_t n = tokens(family, {"--model", preset.preset}, false, ranks);
                const double operations = decoder_flops_per_token(preset, 1024) * static_cast<double>(n);
                REQUIRE((operations <= 2e12 * ranks || n == 1024 * ranks));
                REQUIRE((operations >= 1e12 * ranks || n >= 524288 - 1024 * ranks || n == 1024 * ranks));
            }
    REQUIRE(tokens(kGpt2, {"--batch-tokens", "4096"}, false) == 4096);
}

TEST_CASE("plan/run_plan: with flash attention GPT-2 small at a context of 8192 fits 80 GB, without a T x T buffer") {
    auto plan = [](int T, const char* attention) {
        const std::string length = std::to_string(T);
        return make_plan(kGpt2,
                         *parse({"--plan-only", "--model", "small", "--seq-len", length, "--micro-batch", "8",
                                 "--batch-tokens", std::to_string(8 * T), "--dtype", "bf16", "--attention", attention,
                                 "--recompute", "none", "--steps", "10"}),
                         true, int64_t{1} << 40);
    };
    REQUIRE(memory_bytes(plan(8192, "flash")) < 80'000'000'000);
    // Linear in T: twice the context takes twice the activations, except for the logits and parts independent of T.
    REQUIRE(plan(8192, "flash").activations.total_bytes() <= 2 * plan(4096, "flash").activations.total_bytes());
    // The scores of 128 rows at a time, two copies in float and two in bf16.
    REQUIRE(memory_bytes(plan(8192, "gemm")) > memory_bytes(plan(8192, "flash")) + int64_t{12} * 128 * 8192 * 12);
    REQUIRE(contains(plan_report(plan(1024, "flash")), "attention   flash"));
}

TEST_CASE("plan/run_plan: --gelu-fusion removes GELU's scratch from the plan, and a model without GELU refuses it") {
    auto plan = [](std::vector<std::string> flags) {
        flags.insert(flags.end(),
                     {"--plan-only", "--micro-batch", "64", "--dtype", "bf16", "--recompute", "none", "--steps", "10"});
        return make_plan(kGpt2, *parse(flags), true, int64_t{1} << 40);
    };
    const RunPlan apart = plan({}), within = plan({"--gelu-fusion"});
    // The gradient of 3072 biases from 1024 chunks of rows.
    REQUIRE(memory_bytes(apart) - memory_bytes(within) == int64_t{4} * 1024 * 3072);
    REQUIRE(contains(plan_report(within), "GELU        epilogue"));
    REQUIRE(plan_report(apart).find("GELU") == std::string::npos);
    REQUIRE(options_json(kGpt2, within.options)["gelu-fusion"] == true);
    REQUIRE_THROWS_AS(parse({"--plan-only", "--gelu-fusion"}, kLlama), UsageError);
}

TEST_CASE("plan/run_plan: FP8 copies are in the plan, of weights once per layer or, where they are divided, once") {
    auto plan = [](std::vector<std::string> flags, int ranks = 1) {
        flags.insert(flags.end(), {"--plan-only", "--micro-batch", "16", "--dtype", "bf16", "--recompute", "none",
                                   "--steps", "10", "--attention", "gemm"});
        return make_plan(kGpt2, *parse(flags), true, int64_t{1} << 40, ranks);
    };
    const int64_t N = 16 * 1024, C = 768, L = 12;
    const auto extra = [&](std::vector<std::string> flags, int ranks) {
        const int64_t without = plan(flags, ranks).activations.total_bytes();
        flags.insert(flags.end(), {"--matmul-dtype", "fp8"});
        return plan(flags, ranks).activations.total_bytes() - without;
    };
    // Two copies of a layer's weights, one of an input of the MLP's width and two of a gradient of that width. Also a
    // scale and a maximum for each of 4 x 3 tensors, in 256 bytes each.
    REQUIRE(extra({}, 1) == L * 2 * 12 * C * C + 3 * N * 4 * C + L * (12 + 12) * 256);
    REQUIRE(extra({"--shard", "all"}, 8) == 4 * C * C + 3 * N * 4 * C + L * (12 + 12) * 256);
    REQUIRE(contains(plan_report(plan({"--matmul-dtype", "fp8"})), "in FP8: e4m3, gradients e5m2"));
    REQUIRE(plan_report(plan({})).find("FP8") == std::string::npos);
}

TEST_CASE("plan/run_plan: every preset can be planned, and its report names the memory") {
    const int64_t memory = int64_t{160} << 30;  // AdamW takes 124 GiB for 7 billion parameters
    for (const ModelFamily& family : families())
        for (const DecoderConfig& preset : family.presets)
            for (const char* optimizer : {"adamw", "muon", "teon"}) {
                INFO(family.name << " " << preset.preset << " " << optimizer);
                const auto o =
                    parse({"--plan-only", "--model", preset.preset, "--optimizer", optimizer, "--steps", "10"}, family);
                const RunPlan s = make_plan(family, *o, true, memory);
                REQUIRE(memory_bytes(s) >
                        14 * s.params.size());  // masters, bf16 weights, gradients and at least one moment
                REQUIRE(memory_bytes(s) < memory);
                REQUIRE(int64_t{s.run.B} * s.micro_steps * s.run.T == s.options.batch_tokens);
                REQUIRE(contains(plan_report(s), "total"));
            }
}

TEST_CASE("plan/run_plan: less memory means recomputation and smaller micro-batches, then one clear line") {
    const auto o = *parse({"--plan-only", "--model", "1b", "--steps", "10"}, kLlama);
    const RunPlan roomy = make_plan(kLlama, o, true, int64_t{140} << 30);
    const RunPlan tight = make_plan(kLlama, o, true, int64_t{40} << 30);
    REQUIRE(memory_bytes(tight) <= int64_t{40} << 30);
    REQUIRE(roomy.run.B * roomy.run.T >= 8192);
    REQUIRE(text(roomy.run.recompute) == "none");
    REQUIRE((text(tight.run.recompute) != "none" || tight.run.B < roomy.run.B));
    REQUIRE_THROWS_AS(make_plan(kLlama, o, true, int64_t{16} << 30), UsageError);
}

TEST_CASE("plan/run_plan: a run that resumes keeps the rows of the head that are computed at a time, or is refused") {
    auto o = *parse(words("--plan-only --model small --steps 10 --seq-len 1024 --micro-batch 16"), kGpt2);
    const RunPlan roomy = make_plan(kGpt2, o, true, int64_t{80} << 30);
    REQUIRE(roomy.run.head_rows > 0);
    o.recompute = Recompute::block;  // so that nothing else can be saved
    const int64_t bytes = memory_bytes(make_plan(kGpt2, o, true, int64_t{80} << 30)) - (int64_t{1} << 20);
    REQUIRE(make_plan(kGpt2, o, true, bytes).run.head_rows == 0);
    o.head_rows = roomy.run.head_rows;
    REQUIRE_THROWS_AS(make_plan(kGpt2, o, true, bytes), UsageError);
    o.head_rows = 0;
    REQUIRE(make_plan(kGpt2, o, true, int64_t{80} << 30).run.head_rows == 0);
}

TEST_CASE("plan/run_plan: samples take the memory of their length, not of the model's context") {
    const auto samples = [](const char* flags) {
        const RunPlan p = make_plan(kLlama, *parse(words(flags), kLlama), true, int64_t{80} << 30);
        for (const auto& [name, bytes] : p.memory)
            if (name == "samples") return bytes;
        return int64_t{0};
    };
    REQUIRE(samples("--plan-only --steps 9 --seq-len 1024 --sample-every 5") > 0);
    // Only RoPE's table grows with the context; caches of 32768 tokens would take 0.5 GiB.
    REQUIRE(samples("--plan-only --steps 9 --seq-len 32768 --sample-every 5") <
            2 * samples("--plan-only --steps 9 --seq-len 1024 --sample-every 5"));
}

TEST_CASE("plan/run_plan: recomputes in no more blocks than the memory demands") {
    const auto o = *parse({"--plan-only", "--model", "1b", "--steps", "10", "--seq-len", "65536"}, kLlama);
    const int64_t bytes = int64_t{80} << 30;
    const RunPlan plan = make_plan(kLlama, o, true, bytes);
    const RecomputePlan chosen = plan.run.recompute;
    REQUIRE(chosen.of(0) == Recompute::block);
    REQUIRE(chosen.of(plan.config.L - 1) == Recompute::cheap);
    DecoderRun less = plan.run;
    --less.recompute.first_blocks;
    const int64_t beside = memory_bytes(plan) - plan.activations.total_bytes();
    REQUIRE(memory_bytes(plan) <= bytes);
    REQUIRE(beside + decoder_activations(plan.config, less).total_bytes() > bytes);
}

TEST_CASE("plan/run_plan: offloads no more blocks than the memory demands, and hidden ones before it recomputes") {
    const auto plan_of = [](std::vector<std::string> flags, int64_t gib, bool is_gpu = true) {
        for (const char* word : {"--plan-only", "--model", "1b", "--steps", "10", "--micro-batch", "8"})
            flags.emplace_back(word);
        return make_plan(kLlama, *parse(flags, kLlama), is_gpu, gib << 30);
    };
    const std::vector<std::string> tight = {"--seq-len", "16384", "--recompute", "block"};
    REQUIRE_THROWS_WITH(plan_of(tight, 42), ContainsSubstring("give --offload optimizer, give --offload activations,"));
    std::vector<std::string> offloads = tight;
    offloads.insert(offloads.end(), {"--offload", "activations"});
    const RunPlan plan = plan_of(offloads, 42);
    const int blocks = plan.run.offloaded_blocks;
    REQUIRE((blocks > 1 && blocks <= plan.config.L - 2));
    REQUIRE(memory_bytes(plan) <= int64_t{42} << 30);
    REQUIRE(plan.host_memory.back() ==
            std::pair{std::string("activations, offloaded"), plan.activations.offloaded_bytes()});
    REQUIRE(contains(plan_report(plan), fmt::format("offload     activations of {} of 24 blocks (the fewest", blocks)));
    DecoderRun less = plan.run;
    --less.offloaded_blocks;
    const int64_t beside = memory_bytes(plan) - plan.activations.total_bytes();
    REQUIRE(beside + decoder_activations(plan.config, less).total_bytes() > int64_t{42} << 30);
    offloads.insert(offloads.end(), {"--offload-blocks", std::to_string(blocks)});
    REQUIRE(memory_bytes(plan_of(offloads, 42)) == memory_bytes(plan));
    offloads.back() = "3";
    REQUIRE_THROWS_WITH(plan_of(offloads, 42), ContainsSubstring("--recompute block --offload-blocks 3, but"));
    // On a CPU, host and device memory are the same.
    const RunPlan cpu = plan_of({"--offload", "activations", "--offload-blocks", "3"}, 200, false);
    REQUIRE(cpu.host_memory.empty());
    REQUIRE(memory_bytes(cpu) == memory_bytes(plan_of({}, 200, false)));

    const RunPlan recomputes = plan_of({}, 36), hides = plan_of({"--offload", "activations"}, 36);
    REQUIRE(recomputes.run.recompute.first != Recompute::none);
    REQUIRE(hides.run.recompute.first < recomputes.run.recompute.first);
    REQUIRE(hides.run.offloaded_blocks > 0);
    for (const KnownGpu& gpu : known_gpus()) REQUIRE(step_time(hides, gpu.rates).copies == 0);
    REQUIRE(plan_of({"--offload", "activations"}, 80).run.offloaded_blocks == 0);
}
