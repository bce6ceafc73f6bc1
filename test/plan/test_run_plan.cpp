#include "options/parse_options.h"
#include "plan/run_plan.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <fstream>

#include "model/decoder.h"
#include "model/families.h"
#include "plan/report.h"
#include "plan/step_time.h"

#include "runtime/linalg/library.h"
#include "test/support/catch.h"
#include "test/support/json.h"
#include "test/support/parse.h"
#include "test/support/temp_dir.h"
#include "test/support/write_shard.h"

using namespace teon;
using namespace teon::test;

namespace {

// Returns AdamW's rate in a plan of 192 channels that takes over a run's config.json.
float rate_of_config(const std::string& path) {
    return make_plan(kGpt2, *parse({"--plan-only", "--config", path, "--channels", "192", "--heads", "3"}), true,
                     int64_t{80} << 30)
        .options.optimizer.adamw_lr;
}

void parse_and_plan_a_run(const std::string& data) { plan_run(kGpt2, *parse({"--data", data}), true, 1); }

}  // namespace

TEST_CASE("plan/run_plan: without --batch-tokens a step suits the device") {
    auto tokens = [](const ModelFamily& family, const std::string& flags, bool is_gpu, int ranks = 1) {
        const RunPlan s = planned("--steps 10 " + flags, family, 1024, ranks, is_gpu);
        REQUIRE(s.options.batch_tokens % (int64_t{s.run.T} * ranks * s.run.B) == 0);
        return s.options.batch_tokens;
    };
    REQUIRE(tokens(kGpt2, "", true) == 524288);
    REQUIRE(tokens(kGpt2, "--seq-len 1000", true) == 524000);
    REQUIRE(tokens(kGpt2, "", true, 3) == 523264 - 523264 % 3072);
    for (const ModelFamily& family : {kGpt2, kLlama})
        for (const DecoderConfig& preset : family.presets)
            for (int ranks : {1, 2}) {
                const int64_t n = tokens(family, "--model " + std::string(preset.preset), false, ranks);
                const double operations = decoder_flops_per_token(preset, 1024) * static_cast<double>(n);
                REQUIRE((operations <= 2e12 * ranks || n == 1024 * ranks));
                REQUIRE((operations >= 1e12 * ranks || n >= 524288 - 1024 * ranks || n == 1024 * ranks));
            }
    REQUIRE(tokens(kGpt2, "--batch-tokens 4096", false) == 4096);
}

TEST_CASE("plan/run_plan: matrices are orthogonalized in the type that suits the device, or the one given") {
    const auto on = [](const std::string& flags, bool is_gpu) {
        return planned("--steps 10 " + flags, kGpt2, 1024, 1, is_gpu);
    };
    const auto type = [&](const std::string& flags, bool is_gpu) {
        const RunPlan plan = on("--optimizer muon " + flags, is_gpu);
        // Resolved, so that config.json has it; and reported, because it differs between machines.
        REQUIRE(plan.options.ns_dtype == plan.options.optimizer.ns_dtype);
        const std::string line = fmt::format("NS dtype    {} (", name_of(*plan.options.ns_dtype));
        REQUIRE(plan_report(plan).find(line) != std::string::npos);
        return *plan.options.ns_dtype;
    };
    // A program for GPUs does not know the planned CPU.
    const DType on_cpu = !kGpu && linalg_library().bf16 ? DType::bf16 : DType::f32;
    REQUIRE(type("--dtype bf16", false) == on_cpu);
    REQUIRE(type("--dtype float", false) == DType::f32);
    REQUIRE(type("--dtype bf16", true) == DType::f16);
    for (const bool is_gpu : {false, true}) {
        REQUIRE(type("--dtype bf16 --ns-dtype float", is_gpu) == DType::f32);
        REQUIRE(type("--dtype float --ns-dtype bf16", is_gpu) == DType::bf16);
    }
    for (const char* flags : {"--optimizer adamw", "--optimizer teon --ortho svd"}) {
        const RunPlan plan = on(flags, false);
        REQUIRE(!plan.options.ns_dtype);
        REQUIRE(plan_report(plan).find("NS dtype") == std::string::npos);
    }
    REQUIRE_THROWS_AS(type("--ns-dtype double", false), UsageError);
    REQUIRE_THROWS_AS(type("--ortho svd --ns-dtype bf16", false), UsageError);
    REQUIRE_THROWS_AS(on("--optimizer adamw --ns-dtype bf16", false), UsageError);
}

TEST_CASE("plan/run_plan: without --batch-tokens an epoch has at least 200 steps, down to one sequence a step") {
    TempDir folder;
    // A plan whose data have this number of windows.
    const auto plan = [&](uint32_t windows, const std::string& flags, bool is_gpu = true, int ranks = 1) {
        write_shard(folder / "t_train_0.bin", std::vector<uint32_t>(windows * 32 + 1, 7));
        return planned("--seq-len 32 --data " + (folder / "t_train_0.bin") + " " + flags, kGpt2, 80, ranks, is_gpu);
    };
    const auto says = [](const RunPlan& p, const char* text) { return contains(plan_report(p), text); };
    for (const bool is_gpu : {true, false}) {
        for (const uint32_t windows : {50u, 199u, 200u, 399u})
            REQUIRE(plan(windows, "--model tiny", is_gpu).options.batch_tokens == 32);
        REQUIRE(plan(50, "--model tiny", is_gpu).steps == 50);
        REQUIRE(plan(1001, "--model tiny", is_gpu).options.batch_tokens == 5 * 32);
        REQUIRE(plan(1001, "--model tiny", is_gpu).steps == 200);
        // 11 sequences would make 200 steps, too; 10 have more divisors.
        REQUIRE(plan(2200, "--model tiny", is_gpu).options.batch_tokens == 10 * 32);
    }
    REQUIRE(plan(1000, "--micro-batch 3").options.batch_tokens == 3 * 32);
    REQUIRE(plan(1000, "", true, 4).options.batch_tokens == 4 * 32);
    // A shorter run is divided, too.
    REQUIRE(plan(1000, "--epochs 0.2").options.batch_tokens == 32);
    REQUIRE(plan(1000, "--epochs 9").options.batch_tokens == 5 * 32);
    REQUIRE(planned("--tokens 20M").options.batch_tokens == 96 * 1024);  // 20e6 / 200 / 1024 = 97.7

    const RunPlan few = plan(1000, "--batch-tokens 1024");
    REQUIRE(few.steps == 31);
    REQUIRE(says(few, "warning     31 steps teach a model almost nothing; --batch-tokens 160 makes 198 of the same"));
    REQUIRE(says(plan(49, ""), "warning     49 steps teach a model almost nothing; --epochs 5 makes at least 200"));
    REQUIRE(says(plan(1000, "--batch-tokens 32 --tokens 320"), "--tokens 6400 makes 200"));
    REQUIRE(!says(plan(1000, "--batch-tokens 640"), "warning"));             // 50 steps
    REQUIRE(!says(plan(1000, "--batch-tokens 1024 --steps 5"), "warning"));  // as wanted
    REQUIRE(says(plan(1000, ""), "note        no validation data"));
    REQUIRE(says(plan(1000, ""), "note        32.00k training tokens are few: expect words"));
    REQUIRE(says(plan(1000, ""), " parameters would memorize them: --model tiny"));
    REQUIRE(!says(plan(1000, "--model tiny"), "--model tiny"));
    REQUIRE(!says(plan(31300, "--batch-tokens 3200"), "are few"));  // 1.0016M
    REQUIRE(contains(error_of<UsageError>([&] { plan(10, "--batch-tokens 3200"); }), "give --batch-tokens 32"));
    REQUIRE(contains(error_of<UsageError>([&] { plan(0, ""); }), "lower --seq-len"));
}

TEST_CASE("plan/run_plan: values at which steps are not what one expects of them are warned of") {
    const auto report = [](const std::string& flags) { return plan_report(planned("--steps 100 " + flags)); };
    REQUIRE(!contains(report("--warmup-steps 100 --grad-clip 1e-6 --eps 1e-20"), "warning"));
    REQUIRE(contains(report("--warmup-steps 60"), "warmup 60 of 100 steps"));
    REQUIRE(contains(report("--warmup-steps 101"), "warning     --warmup-steps 101: the 100 steps of this run end"));
    REQUIRE(contains(report("--grad-clip 1e-30"), "warning     --grad-clip 1e-30: gradients of this norm are lost"));
    REQUIRE(contains(report("--eps 1e-30"), "warning     --eps 1e-30: float has no square of a gradient below 1e-22"));
}

TEST_CASE("plan/run_plan: an activation that not every program reads from checkpoints is named") {
    const auto note = [](const ModelFamily& family, const std::string& flags) {
        const std::string text = plan_report(planned("--steps 10 " + flags, family, 1024, 1, false));
        return text.substr(std::min(text.find("note        --mlp"), text.size()));
    };
    REQUIRE(contains(note(kLlama, "--mlp geglu"), "CTranslate2 compute swiglu in its place"));
    REQUIRE(contains(note(kGpt2, "--mlp relu2"), "CTranslate2 compute gelu in its place"));
    REQUIRE(note(kLlama, "--mlp swiglu").empty());
    REQUIRE(note(kGpt2, "").empty());
}

TEST_CASE("plan/run_plan: --batch-tokens is rounded down to whole sequences, with a note") {
    const auto plan = [](const std::string& flags, int ranks = 1) {
        return planned("--steps 60 " + flags, kGpt2, 80, ranks);
    };
    const RunPlan half = plan("--batch-tokens 0.5M");
    REQUIRE(half.options.batch_tokens == 488 * 1024);
    REQUIRE(contains(plan_report(half),
                     "note        --batch-tokens 500000 is rounded down to 499712, whole sequences of 1024"));
    REQUIRE(plan("--batch-tokens 0.5M --micro-batch 16", 3).options.batch_tokens == 480 * 1024);
    REQUIRE(plan_report(plan("--batch-tokens 512Ki")).find("rounded") == std::string::npos);
}

TEST_CASE("plan/run_plan: AdamW's rate beside another optimizer follows the width, not --lr") {
    const auto plan = [](const ModelFamily& family, const std::string& flags) {
        return planned("--steps 100 " + flags, family);
    };
    const auto rate = [&](const std::string& flags) { return plan(kGpt2, flags).options.optimizer.adamw_lr; };
    for (const char* method : {"muon", "normuon", "teon"})
        for (const char* lr : {"0.02", "0.001"})
            REQUIRE(rate(fmt::format("--optimizer {} --lr {}", method, lr)) == 1.2e-3f);
    REQUIRE(rate("--optimizer muon --model large") == 7.2e-4f);
    REQUIRE(rate("--optimizer muon --channels 32 --heads 1") == 0.01f);
    REQUIRE(rate("--optimizer muon --adamw-lr 0.5") == 0.5f);
    REQUIRE(rate("--lr 0.02") == 0.02f);
    const std::string report = plan_report(
        plan(kLlama, "--optimizer teon --lr 0.02 --lr-scale q=0.5 --weight-decay 0.2 --schedule linear --seed 7"));
    REQUIRE(contains(report,
                     "optimizer   teon: lr 0.02, weight decay 0.2 for hidden matrices; adamw: lr 0.0018, "
                     "weight decay 0.2 for the rest; lr of q x 0.5\n"));
    REQUIRE(contains(report, "schedule    linear to 0 of the peak, warmup 10 of 100 steps\n"));
    REQUIRE(contains(report, "clipping    gradient norm at most 1\nseed        7\n"));
    REQUIRE(contains(plan_report(plan(kGpt2, "--schedule constant-linear --constant-ratio 0.4")),
                     "optimizer   adamw: lr 0.0003, weight decay 0.1\n"
                     "schedule    constant-linear to 0 of the peak, warmup 10 of 100 steps, decay after step 40\n"));
    // A run's own default follows the model of the run that takes it over; a given rate, or an older version's, stays.
    TempDir folder;
    const auto taken_over = [&](const std::string& flags, Json rate = {}) {
        const Options o = plan(kGpt2, "--optimizer muon " + flags).options;
        Json config = {{"program", "train_gpt2"}, {"options", options_json(kGpt2, o)}};
        if (rate.is_null())
            config["given"] = given_json(kGpt2, o);
        else
            config["options"]["adamw-lr"] = rate;
        std::ofstream(folder / "config.json") << json_text(config);
        return rate_of_config(folder / "config.json");
    };
    REQUIRE(taken_over("--channels 384 --heads 6") == 4.8e-3f);  // 3e-4 x 3072 / 192
    REQUIRE(taken_over("--model tiny") == 4.8e-3f);
    REQUIRE(taken_over("--adamw-lr 0.5") == 0.5f);
    REQUIRE(taken_over("--lr 0.02", 0.02) == 0.02f);
}

TEST_CASE("plan/run_plan: heads without flash attention say what they cost") {
    const auto report = [](const std::string& flags) {
        return plan_report(planned("--plan-for h100 --steps 9 " + flags, kLlama, 160));
    };
    // 12 bytes x 32 layers x 32 heads x 524288 x 1024 / 2.
    REQUIRE(contains(report("--model 3b"),
                     "note        heads of 80 have no flash attention: the scores of a step cross the "
                     "device's memory, at least 3072.00 GiB; --heads 20 (of 128) or --heads 40 (of "
                     "64) would have it\n"));
    REQUIRE(report("--model 3b --heads 20").find("flash attention:") == std::string::npos);
    REQUIRE(contains(report("--model 3b --heads 20"), "attention   flash"));
}

TEST_CASE("plan/whole_run: a plan ends with the cost of the whole run, and needs no data") {
    const auto report = [](const std::string& flags, int ranks = 1) {
        return plan_report(
            make_plan(kGpt2, *parse(words("--data no/such/folder " + flags)), true, int64_t{140} << 30, ranks));
    };
    const std::string text = report("--plan-for h100 --tokens 1e10 --batch-tokens 524288 --ranks 8", 8);
    double ms = 0;
    double hours = 0;
    double least_hours = 0;
    double most_hours = 0;
    double gpu_hours = 0;
    double mfu = 0;
    REQUIRE(std::sscanf(text.c_str() + text.find("\n  step "), "\n  step %lf ms", &ms) == 1);
    const size_t end = text.find("the whole run\n");
    REQUIRE(std::sscanf(text.c_str() + text.find("  time  ", end), " time %lf hours (%lf to %lf) on 8 h100, %lf",
                        &hours, &least_hours, &most_hours, &gpu_hours) == 4);
    REQUIRE(std::abs(hours / (19073 * ms / 3.6e6) - 1) < 0.01);
    REQUIRE(std::abs(gpu_hours / (8 * hours) - 1) < 0.01);
    REQUIRE(std::abs(most_hours / hours / std::exp(0.13) - 1) < 0.01);
    REQUIRE(std::abs(hours / least_hours / std::exp(0.13) - 1) < 0.01);
    REQUIRE(std::sscanf(text.c_str() + text.find("tokens/s, ", end), "tokens/s, %lf%% MFU", &mfu) == 1);
    // GPT-2 124M at T = 1024: 798 MFLOP per token (attention causal, with the head).
    REQUIRE(std::abs(mfu / (100 * 524288e3 / ms * 798e6 / (8 * 989e12)) - 1) < 0.05);
    REQUIRE(contains(text, "  data          18.63 GiB on disk if each token is seen once\n"));  // 2e10 bytes
    // Float masters and AdamW's two moments of 124.44M parameters, and the interim checkpoint that is replaced.
    REQUIRE(contains(text, "  checkpoints   at most 2 x 1.39 GiB = 2.78 GiB on disk\n"));
    REQUIRE(contains(text, "note        no/such/folder: no such file or folder"));
    REQUIRE(text.find("note") > end);

    const auto checkpoints = [&](const char* flags, int steps = 1000) {
        const std::string all = report(fmt::format("--plan-only --steps {} --checkpoint-every 100 {}", steps, flags));
        int count = 0;
        REQUIRE(std::sscanf(all.c_str() + all.find("  checkpoints   at most "), " checkpoints at most %d x", &count) ==
                1);
        return count;
    };
    REQUIRE(checkpoints("") == 11);
    REQUIRE(checkpoints("--checkpoint-minutes 0") == 10);
    REQUIRE(checkpoints("--checkpoint-minutes 0 --checkpoint-end off") == 10);
    REQUIRE(checkpoints("--checkpoint-minutes 0", 1050) == 11);
    REQUIRE(checkpoints("--checkpoint-minutes 0 --checkpoint-end off", 1050) == 10);
    REQUIRE(checkpoints("--checkpoint-minutes 0 --keep-best") == 11);
    REQUIRE(checkpoints("--keep-last 2") == 3);
    REQUIRE(checkpoints("--keep-last 2 --keep-best") == 4);
    REQUIRE(checkpoints("--keep-last 2 --keep-every 500") == 5);
    REQUIRE(contains(report("--plan-only --steps 9"), "not predicted without --plan-for"));
    REQUIRE_THROWS_AS(parse_and_plan_a_run("no/such/folder"), UsageError);
}

TEST_CASE("plan/run_plan: what shards without a manifest leave open is given or said") {
    TempDir folder;
    const std::string shard = folder / "x_train_000001.bin";
    std::vector<uint32_t> tokens(3'000'000, 7);  // more than are read at a time
    tokens[2'999'999] = 1023;
    write_shard(shard, tokens);
    const auto plan = [&](const std::string& flags) { return planned("--steps 9 --data " + shard + " " + flags); };
    const std::string assumed =
        "vocabulary 50257 is assumed, the preset's, because there is no manifest.json; the "
        "largest id of " +
        shard + " is 1023";
    REQUIRE(contains(plan_report(plan("")), assumed));
    REQUIRE(!contains(plan_report(plan("--vocab-size 1024")), "is assumed"));
    REQUIRE(plan("").train.delimiter == -1);
    REQUIRE(plan("--delimiter 5 --document-mask on").train.delimiter == 5);
    REQUIRE(contains(error_of<UsageError>([&] { plan("--document-mask on"); }), "name it with --delimiter"));
    write_file(folder / "manifest.json", R"({"vocab_size": 1024, "delimiter": 9})");
    REQUIRE(!contains(plan_report(plan("")), "is assumed"));
    REQUIRE(plan("--delimiter 9").train.delimiter == 9);
    REQUIRE(contains(error_of<UsageError>([&] { plan("--delimiter 5"); }), "manifest.json says 9"));
}

TEST_CASE("plan/run_plan: with flash attention GPT-2 small at a context of 8192 fits 80 GB, without a T x T buffer") {
    auto plan = [](int T, const char* attention) {
        return planned(fmt::format("--model small --seq-len {} --micro-batch 8 --batch-tokens {} --dtype bf16 "
                                   "--attention {} --recompute none --steps 10",
                                   T, 8 * T, attention),
                       kGpt2, 1024);
    };
    REQUIRE(memory_bytes(plan(8192, "flash")) < 80'000'000'000);
    // Linear in T: twice the context takes twice the activations, except for the logits and parts independent of T.
    REQUIRE(plan(8192, "flash").activations.total_bytes() <= 2 * plan(4096, "flash").activations.total_bytes());
    // The scores of 128 rows at a time, two copies in float and two in bf16.
    REQUIRE(memory_bytes(plan(8192, "gemm")) > memory_bytes(plan(8192, "flash")) + int64_t{12} * 128 * 8192 * 12);
    REQUIRE(contains(plan_report(plan(1024, "flash")), "attention   flash"));
}

TEST_CASE("plan/run_plan: FP8 copies are in the plan, of weights once per layer or, where they are divided, once") {
    auto plan = [](const std::string& flags, int ranks = 1) {
        return planned("--micro-batch 16 --dtype bf16 --recompute none --steps 10 --attention gemm " + flags, kGpt2,
                       1024, ranks);
    };
    const int64_t N = 16 * 1024;
    const int64_t C = 768;
    const int64_t L = 12;
    const auto extra = [&](const std::string& flags, int ranks) {
        return plan("--matmul-dtype fp8 " + flags, ranks).activations.total_bytes() -
               plan(flags, ranks).activations.total_bytes();
    };
    // Two copies of a layer's weights, one of an input of the MLP's width and two of a gradient of that width. Also a
    // scale and a maximum for each of 4 x 3 tensors, in 256 bytes each.
    REQUIRE(extra("", 1) == L * 2 * 12 * C * C + 3 * N * 4 * C + L * (12 + 12) * 256);
    REQUIRE(extra("--shard all", 8) == 4 * C * C + 3 * N * 4 * C + L * (12 + 12) * 256);
    REQUIRE(contains(plan_report(plan("--matmul-dtype fp8")), "in FP8: e4m3, gradients e5m2"));
    REQUIRE(plan_report(plan("")).find("FP8") == std::string::npos);
    const RunPlan fast = plan("--matmul-dtype fp8 --fast-accumulation");
    REQUIRE(fast.run.fast_accumulation);
    REQUIRE(contains(plan_report(fast), "gradients e5m2, fast accumulation"));
    REQUIRE(!plan("--matmul-dtype fp8").run.fast_accumulation);
}

TEST_CASE("plan/run_plan: the report says if the sharding sums micro-batches in another order") {
    for (const char* products : {"same", "fp8"})
        for (const char* shard : {"none", "optimizer", "gradients", "all"})
            for (const int micro_batches : {1, 4}) {
                const RunPlan plan =
                    planned(fmt::format("--micro-batch 16 --dtype bf16 --steps 10 --batch-tokens {} --shard {} "
                                        "--matmul-dtype {}",
                                        micro_batches * 2 * 16 * 1024, shard, products),
                            kGpt2, 1024, 2);
                const std::string words = "adds micro-batches after ranks: other last bits than none and optimizer";
                INFO(shard << ", " << micro_batches << " micro-batches, " << products);
                REQUIRE(plan.micro_steps == micro_batches);
                REQUIRE(contains(plan_report(plan), words) ==
                        (plan.sharding >= Sharding::gradients && micro_batches > 1));
            }
}

TEST_CASE("plan/run_plan: every preset can be planned, and its report names the memory") {
    const int64_t gib = 160;  // AdamW takes 124 GiB for 7 billion parameters
    for (const ModelFamily& family : families())
        for (const DecoderConfig& preset : family.presets)
            for (const char* optimizer : {"adamw", "muon", "teon"}) {
                INFO(family.name << " " << preset.preset << " " << optimizer);
                const RunPlan s =
                    planned(fmt::format("--model {} --optimizer {} --steps 10", preset.preset, optimizer), family, gib);
                REQUIRE(memory_bytes(s) >
                        14 * s.params.size());  // masters, bf16 weights, gradients and at least one moment
                REQUIRE(memory_bytes(s) < gib << 30);
                REQUIRE(int64_t{s.run.B} * s.micro_steps * s.run.T == s.options.batch_tokens);
                REQUIRE(contains(plan_report(s), "total"));
            }
}

TEST_CASE("plan/run_plan: what all processes of a machine pin is held against the host's memory") {
    const std::string flags = "--model 7b --offload optimizer --dtype bf16 --steps 10";
    const RunPlan plan = planned(flags, kLlama);
    // Masters and two moments, and the copy of them that is written to a checkpoint with its largest tensor once more.
    const int64_t state_bytes = 12 * plan.params.size();
    check_host_memory(plan, 1, 2 * state_bytes + (int64_t{4} << 30));
    const std::string error = error_of<UsageError>([&] { check_host_memory(plan, 1, 2 * state_bytes); });
    REQUIRE(contains(error, "the run pins"));
    REQUIRE(contains(error, "leave out --offload or use a smaller model"));
    check_host_memory(plan, 8, 9 * state_bytes + (int64_t{4} << 30));  // rank 0 alone copies a checkpoint
    REQUIRE(contains(error_of<UsageError>([&] { check_host_memory(plan, 8, 9 * state_bytes); }), "of each rank"));
    check_host_memory(planned(flags, kLlama, 400, 1, false), 8, 0);  // a CPU has one memory
}

TEST_CASE("plan/run_plan: less memory means recomputation and smaller micro-batches, then one clear line") {
    const RunPlan roomy = planned("--model 1b --steps 10", kLlama, 140);
    const RunPlan tight = planned("--model 1b --steps 10", kLlama, 40);
    REQUIRE(memory_bytes(tight) <= int64_t{40} << 30);
    REQUIRE(roomy.run.B * roomy.run.T >= 8192);
    REQUIRE(text(roomy.run.recompute) == "none");
    REQUIRE((text(tight.run.recompute) != "none" || tight.run.B < roomy.run.B));
    REQUIRE_THROWS_AS(planned("--model 1b --steps 10", kLlama, 16), UsageError);
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
    const auto samples = [](int T) {
        for (const auto& [part, bytes] :
             planned(fmt::format("--steps 9 --seq-len {} --sample-every 5", T), kLlama).memory)
            if (part == MemoryPart::samples) return bytes;
        return int64_t{0};
    };
    REQUIRE(samples(1024) > 0);
    // Only RoPE's table grows with the context; caches of 32768 tokens would take 0.5 GiB.
    REQUIRE(samples(32768) < 2 * samples(1024));
}

TEST_CASE("plan/run_plan: recomputes in no more blocks than the memory demands") {
    const int64_t bytes = int64_t{80} << 30;
    const RunPlan plan = planned("--model 1b --steps 10 --seq-len 65536", kLlama);
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
    const auto plan_of = [](const std::string& flags, int64_t gib, bool is_gpu = true) {
        return planned("--model 1b --steps 10 --micro-batch 8 " + flags, kLlama, gib, 1, is_gpu);
    };
    const std::string tight = "--seq-len 16384 --recompute block";
    REQUIRE_THROWS_WITH(plan_of(tight, 42), ContainsSubstring("give --offload optimizer, give --offload activations,"));
    const std::string offloads = tight + " --offload activations";
    const RunPlan plan = plan_of(offloads, 42);
    const int blocks = plan.run.offloaded_blocks;
    REQUIRE((blocks > 1 && blocks <= plan.config.L - 2));
    REQUIRE(memory_bytes(plan) <= int64_t{42} << 30);
    REQUIRE(plan.host_memory.back() == std::pair{MemoryPart::offloaded, plan.activations.offloaded_bytes()});
    REQUIRE(contains(plan_report(plan), fmt::format("offload     activations of {} of 24 blocks (the fewest", blocks)));
    DecoderRun less = plan.run;
    --less.offloaded_blocks;
    const int64_t beside = memory_bytes(plan) - plan.activations.total_bytes();
    REQUIRE(beside + decoder_activations(plan.config, less).total_bytes() > int64_t{42} << 30);
    REQUIRE(memory_bytes(plan_of(fmt::format("{} --offload-blocks {}", offloads, blocks), 42)) == memory_bytes(plan));
    REQUIRE_THROWS_WITH(plan_of(offloads + " --offload-blocks 3", 42),
                        ContainsSubstring("--recompute block --offload-blocks 3, but"));
    // On a CPU, host and device memory are the same.
    const RunPlan cpu = plan_of("--offload activations --offload-blocks 3", 200, false);
    REQUIRE(cpu.host_memory.empty());
    REQUIRE(memory_bytes(cpu) == memory_bytes(plan_of("", 200, false)));

    const RunPlan recomputes = plan_of("", 36);
    const RunPlan hides = plan_of("--offload activations", 36);
    REQUIRE(recomputes.run.recompute.first != Recompute::none);
    REQUIRE(hides.run.recompute.first < recomputes.run.recompute.first);
    REQUIRE(hides.run.offloaded_blocks > 0);
    for (const GpuModel& gpu : kGpus) REQUIRE(step_time(hides, gpu.rates).copies == 0);
    REQUIRE(plan_of("--offload activations", 80).run.offloaded_blocks == 0);
}
