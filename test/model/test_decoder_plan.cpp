// What a decoder's plan says of its memory, parameters and FLOPs, without a pass.
#include <cmath>
#include <optional>

#include "kernels/attention/flash.h"
#include "model/decoder.h"
#include "model/gpt2.h"
#include "model/llama.h"
#include "model/olmo2.h"
#include "test/model/small_decoder.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

TEST_CASE(
    "model/decoder_plan: automatic attention is flash if it is supported, without dropout and the machine has tensor "
    "cores") {
    DecoderConfig c = small_config("llama");
    DecoderRun run{B, T, DType::bf16};
    REQUIRE(resolve_attention(c, run) == AttentionKind::gemm);  // head size 12
    c.C = 128;
    c.NH = c.NKV = 2;
    REQUIRE(resolve_attention(c, run) == (flash_attention_is_fast() ? AttentionKind::flash : AttentionKind::gemm));
    c.dropout = 0.1f;
    REQUIRE(resolve_attention(c, run) == AttentionKind::gemm);
    run.attention = AttentionKind::flash;
    REQUIRE(error_of<UsageError>([&] { resolve_attention(c, run); }) ==
            "--attention flash: has no dropout of probabilities, but this run has --dropout 0.1; use --attention gemm");
    c.dropout = 0;
    REQUIRE(resolve_attention(c, run) == AttentionKind::flash);
    run.dtype = DType::f32;
    REQUIRE_THROWS_AS(resolve_attention(c, run), UsageError);
    run.attention = AttentionKind::automatic;
    REQUIRE(resolve_attention(c, run) == AttentionKind::gemm);
}

TEST_CASE("model/decoder_plan: presets have the parameter counts of their papers, in millions") {
    const struct {
        const char *family, *preset;
        int max_T;
        std::string millions;
    } rows[] = {{"gpt2", "small", 1024, "124.439808"}, {"gpt2", "base", 1024, "354.823168"},
                {"gpt2", "large", 1024, "774.030080"}, {"gpt2", "small", 8192, "129.94"},
                {"gpt2", "base", 8192, "362.16"},      {"gpt2", "large", 8192, "783.21"},
                {"qwen3", "0.6b", 1024, "596.049920"}, {"olmo2", "1b", 1024, "1484.916736"},
                {"olmo2", "7b", 1024, "7298.617344"},  {"qwen2", "0.5b", 1024, "494.032768"},
                {"qwen2", "7b", 1024, "7615.616512"},  {"smollm3", "3b", 1024, "3075.098624"},
                {"llama", "60m", 1024, "58.07"},       {"llama", "130m", 1024, "134.11"},
                {"llama", "350m", 1024, "367.97"},     {"llama", "1b", 1024, "1339.08"}};
    for (const auto& row : rows) {
        INFO(row.family << " " << row.preset);
        DecoderConfig c = family_of(row.family).config(row.preset);
        c.max_T = row.max_T;
        const size_t decimals = row.millions.size() - row.millions.find('.') - 1;  // as many as the paper has
        const double count = static_cast<double>(decoder_params(c).logical_size()) / 1e6;
        REQUIRE(fmt::format("{:.{}f}", count, decimals) == row.millions);
    }
}

TEST_CASE("model/decoder_plan: FLOPs per token match the architecture") {
    REQUIRE(std::abs(decoder_flops_per_token(gpt2_family().config("small"), 1024) / 1e6 - 798) < 1);
    REQUIRE(std::abs(decoder_flops_per_token(gpt2_family().config("large"), 1024) / 1e6 - 4916) < 2);
    REQUIRE(std::abs(decoder_flops_per_token(llama_family().config("1b"), 1024) / 1e6 - 7943) < 2);
    // 6 x (16 layers of 4 x 2048^2 + 3 x 2048 x 8192, and the head's 100352 x 2048) + 6 x 16 x 2048 x 1024.
    REQUIRE(std::abs(decoder_flops_per_token(olmo2_family().config("1b"), 1024) / 1e6 - 7877) < 1);
}

TEST_CASE("model/decoder_plan: a window takes the FLOPs of the keys that it hides, and memory for the first keys") {
    for (const ModelFamily& family : families()) {
        INFO(family.name);
        DecoderConfig c = family.config("tiny");
        const int length = 1024;
        const double whole = decoder_flops_per_token(c, length);
        DecoderRun run{2, length, DType::bf16};
        const int64_t bytes = decoder_activations(c, run).total_bytes();
        c.window = length;
        REQUIRE(decoder_flops_per_token(c, length) == whole);
        REQUIRE(decoder_activations(c, run).total_bytes() == bytes);
        // Row t of the last 960 does not see t - 63 keys, so 461,280 of the 524,288 pairs are not multiplied: by 4
        // FLOPs per channel of the heads, three times.
        c.window = 64;
        const double hidden = 960.0 * 961 / 2 / length;
        const double per_key = 3.0 * 4 * c.L * c.attention_width();
        REQUIRE(std::abs(whole - decoder_flops_per_token(c, length) - per_key * hidden) <= per_key / 2);
        REQUIRE(decoder_activations(c, run).total_bytes() == bytes + 2 * length * 4);
    }
}

TEST_CASE("model/decoder_plan: layers without a window have the FLOPs of all keys") {
    DecoderConfig c = olmo2_family().config("tiny");
    const double whole = decoder_flops_per_token(c, 1024);
    c.window = 64;
    const double windowed = decoder_flops_per_token(c, 1024);
    c.full_every = 4;  // one of four layers
    REQUIRE(std::abs(decoder_flops_per_token(c, 1024) - (whole + 3 * windowed) / 4) <= 1e-12 * whole);
    c.full_every = 2;
    REQUIRE(std::abs(decoder_flops_per_token(c, 1024) - (whole + windowed) / 2) <= 1e-12 * whole);
}

TEST_CASE("model/decoder_plan: the model allocates the memory of its activation plan") {
    for (const std::string& name : kAllModels)
        for (const int offloaded : {0, 1})
            for (const RecomputePlan& recompute : recompute_plans(small_config(name).L)) {
                const DecoderConfig c = small_config(name);
                DecoderRun run = small_run(DType::bf16);
                run.recompute = recompute;
                run.offloaded_blocks = offloaded;
                INFO(name << " " << text(recompute) << ", " << offloaded << " blocks offloaded");
                Context context;
                const size_t before = device_bytes_in_use();
                const std::unique_ptr<Model> model = make_decoder(c, run, context);
                const int64_t params = model->table().size();
                const int64_t held = static_cast<int64_t>(device_bytes_in_use() - before);
                const int64_t planned = decoder_activations(c, run).total_bytes() + params * (4 + 4 + 2);
                REQUIRE(std::abs(held - planned) <= planned / 100 + 65536);  // rounding to 256 bytes
            }
}

TEST_CASE("model/decoder_plan: each offloaded block reduces the device's memory by its saved tensors") {
    const DecoderConfig c = llama_family().config("1b");
    for (const Recompute policy : {Recompute::none, Recompute::cheap, Recompute::block}) {
        DecoderRun run{4, 1024, DType::bf16};
        run.recompute = policy;
        const ActivationPlan kept = decoder_activations(c, run);
        REQUIRE(kept.offloaded_bytes() == 0);
        run.offloaded_blocks = 1;
        const int64_t block = decoder_activations(c, run).offloaded_bytes();
        REQUIRE((block == int64_t{4} * 1024 * c.C * 2) == (policy == Recompute::block));  // only its input
        for (run.offloaded_blocks = 1; run.offloaded_blocks <= c.L - 2; ++run.offloaded_blocks) {
            const ActivationPlan plan = decoder_activations(c, run);
            REQUIRE(plan.offloaded_bytes() == run.offloaded_blocks * block);
            REQUIRE(plan.saved_bytes() == kept.saved_bytes() - plan.offloaded_bytes());
            REQUIRE(plan.scratch_bytes() == kept.scratch_bytes());
        }
        REQUIRE_THROWS_WITH(decoder_activations(c, run), ContainsSubstring("cannot be offloaded"));
    }
}

TEST_CASE("model/decoder_plan: each plan of recomputation needs at most the memory of the previous one") {
    const DecoderConfig c = llama_family().config("1b");
    DecoderRun run{4, 1024, DType::bf16};
    const std::vector<RecomputePlan> plans = recompute_plans(c.L);
    REQUIRE(plans.size() == 2u * c.L + 1);
    const int64_t kept = decoder_activations(c, run).total_bytes();
    int64_t before = kept;
    for (const RecomputePlan& recompute : plans) {
        INFO(text(recompute));
        run.recompute = recompute;
        const int64_t bytes = decoder_activations(c, run).total_bytes();
        REQUIRE(bytes <= before);
        before = bytes;
    }
    REQUIRE(before < kept / 3);
}
