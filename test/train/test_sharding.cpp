// Memory and traffic with --shard on several ranks. test_ranks.py runs the hidden test cases by name.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "data/loader.h"
#include "model/decoder.h"
#include "test/support/catch.h"
#include "test/support/parse.h"
#include "test/support/temp_dir.h"
#include "test/support/transfer.h"
#include "test/support/write_shard.h"
#include "train/trainer.h"

using namespace teon;
using namespace teon::test;

namespace {

RunPlan plan_of(int ranks, const char* sharding, const char* optimizer, const char* dtype, const char* exchanged,
                const char* offload_blocks = nullptr) {
    std::vector<std::string> flags = words(
        "--plan-only --model tiny --layers 6 --channels 128 --heads 4 --ffn 300 --vocab-size 512 --seq-len 32 "
        "--steps 10 --micro-batch 2");
    flags.insert(flags.end(), {"--batch-tokens", std::to_string(ranks * 2 * 2 * 32), "--shard", sharding, "--dtype",
                               dtype, "--optimizer", optimizer, "--grad-comm-dtype", exchanged});
    if (offload_blocks) flags.insert(flags.end(), {"--offload", "activations", "--offload-blocks", offload_blocks});
    return make_plan(kLlama, *parse(flags, kLlama), false, int64_t{1} << 40, ranks);
}

// Returns the bytes of the plan's buffers on the device. This excludes the allowance, which is for other memory, and
// offloaded tensors and the buffers for checkpoints, which are in host memory.
int64_t planned_bytes(const RunPlan& plan) {
    int64_t sum = 0;
    for (const auto& [part, bytes] : plan.memory)
        if (part != MemoryPart::program && part != MemoryPart::exchange && part != MemoryPart::offloaded &&
            part != MemoryPart::checkpoint)
            sum += bytes;
    return sum;
}

std::vector<float> of_all_ranks(double value_of_rank, Context& ctx) {
    Buffer<float> mine(1);
    Buffer<float> all(ctx.comm->size());
    put(mine.data(), std::vector{static_cast<float>(value_of_rank)}, ctx.stream);
    ctx.comm->all_gather(all.data(), mine.data(), 1, DType::f32, ctx.stream);
    ctx.comm->join(ctx.stream);
    return fetch(all, ctx.stream);
}

// Trains with two micro-batches per step. Checks that memory is within 1% of the plan, and traffic as predicted.
void check(const char* sharding) {
    Context ctx;
    const int ranks = ctx.comm->size();
    const int rank = ctx.comm->rank();
    TempDir folder;
    std::vector<uint32_t> tokens(8000);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * i % 509);
    write_shard(folder / "t_train_000000.bin", tokens);
    size_t peak_bytes = device_bytes_peak();
    for (const auto [optimizer, dtype, exchanged, offload_blocks] :
         {std::array<const char*, 4>{"adamw", "float", "float"},
          {"adamw", "bf16", "float"},
          {"muon", "float", "bf16", "1"},
          {"muon", "bf16", "float"},
          {"muon", "bf16", "bf16"},
          {"muon", "bf16", "float", "4"}}) {
        INFO(sharding << ", " << optimizer << ", " << dtype << ", " << exchanged << ", offload of "
                      << (offload_blocks ? offload_blocks : "no") << " blocks");
        const RunPlan plan = plan_of(ranks, sharding, optimizer, dtype, exchanged, offload_blocks);
        const size_t before = device_bytes_in_use();
        std::unique_ptr<Model> model = make_decoder(plan.config, plan.run, ctx, shard_of(plan, rank));
        Optimizer opt(model->params(), plan.optimizer_plan, plan.placement, plan.options.optimizer, ctx);
        model->params().initialize(1, ctx.stream);
        Loader loader(open_shards(folder.path(), "train"),
                      {.B = plan.run.B, .T = plan.run.T, .vocab_size = plan.config.V, .rank = rank, .ranks = ranks});
        TrainerOptions o;
        o.steps = 10;
        o.micro_steps = plan.micro_steps;
        o.batch_tokens = plan.options.batch_tokens;
        o.optimizer = plan.options.optimizer;
        o.grad_comm_dtype = plan.options.grad_comm_dtype;
        Trainer trainer(*model, opt, loader, o, ctx);
        double sent = 0;
        for (int step = 0; step < 2; ++step) {
            const int64_t sent_before = ctx.comm->bytes_sent();
            trainer.step();
            sent = static_cast<double>(ctx.comm->bytes_sent() - sent_before);
        }
        trainer.finish();
        peak_bytes = std::max(peak_bytes, device_bytes_in_use());
        REQUIRE(device_bytes_peak() == peak_bytes);  // a step allocates nothing
        const auto used = static_cast<double>(device_bytes_in_use() - before);
        const std::vector<float> by_rank = of_all_ranks(used, ctx);
        const std::vector<float> sent_by_rank = of_all_ranks(sent, ctx);
        const double largest = *std::max_element(by_rank.begin(), by_rank.end());
        const auto planned = static_cast<double>(planned_bytes(plan));
        INFO("planned " << planned << ", measured " << largest);
        peak_bytes = device_bytes_peak();
        REQUIRE(largest <= 1.01 * planned);
        REQUIRE(largest >= 0.99 * planned);
        if (ranks == 1) continue;
        // The formula counts gaps between rows, fewer than 64 elements each, which are not always sent. A rank also
        // sends losses, requests and the norm.
        const StepTraffic traffic = step_traffic(plan.params, ranks, exchange_of(plan));
        const double expected = ranks * (traffic.gradients + traffic.weights);
        double all = 0;
        for (float bytes : sent_by_rank) all += bytes;
        const double gaps = 63.0 * 4 * plan.params.count() * ranks * (2 + 2 * plan.micro_steps);
        REQUIRE(all <= expected + 64.0 * ranks * ranks);
        REQUIRE(all >= expected - gaps);
    }
}

}  // namespace

TEST_CASE("train/sharding: memory and traffic of none", "[.][sharding]") { check("none"); }
TEST_CASE("train/sharding: memory and traffic of optimizer", "[.][sharding]") { check("optimizer"); }
TEST_CASE("train/sharding: memory and traffic of gradients", "[.][sharding]") { check("gradients"); }
TEST_CASE("train/sharding: memory and traffic of all", "[.][sharding]") { check("all"); }

TEST_CASE("train/sharding: --offload keeps masters and optimizer state off the device") {
    Context ctx;
    for (const char* dtype : {"float", "bf16"})
        for (const char* optimizer : {"adamw", "muon"}) {
            INFO(dtype << ", " << optimizer);
            RunPlan plan = plan_of(1, "none", optimizer, dtype, "float");
            const auto used = [&](bool offload) {
                plan.options.offload = offload ? Offload::optimizer : Offload::none;
                const size_t before = device_bytes_in_use();
                const std::unique_ptr<Model> model = make_decoder(plan.config, plan.run, ctx, shard_of(plan, 0));
                const Optimizer opt(model->params(), plan.optimizer_plan, plan.placement, plan.options.optimizer, ctx);
                return static_cast<int64_t>(device_bytes_in_use() - before);
            };
            int64_t offloaded = 0;
            for (const auto& [part, bytes] : plan.memory)
                if (part == MemoryPart::optimizer_state || (part == MemoryPart::masters && dtype[0] == 'b'))
                    offloaded += bytes;
            REQUIRE(offloaded > 0);
            // The momentum of each stack is aligned to 256 bytes.
            const int64_t less = used(false) - used(true);
            REQUIRE(less >= offloaded);
            REQUIRE(less <= offloaded + 256 * plan.params.count());
        }
}
