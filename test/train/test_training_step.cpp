// In a training step the host only queues work. It allocates nothing, frees nothing and waits only for work that is two
// batches or one step old, so that the device never runs dry. The whole step can be captured as a graph.
#include <cmath>

#include "model/decoder.h"
#include "model/gpt2.h"
#include "model/llama.h"
#include "runtime/cuda/profiler.h"
#include "test/model_gpu/model_gpu.h"
#include "test/support/compare.h"
#include "test/support/temp_dir.h"
#include "test/support/transfer.h"
#include "test/support/whole_params.h"
#include "test/support/write_shard.h"
#include "train/evaluation.h"
#include "train/trainer.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr int kB = 2;
constexpr int kT = 16;
constexpr int kMicroSteps = 3;
constexpr int kV = 50;

DecoderConfig small_config(bool llama, int layers = 2) {
    DecoderConfig c = llama ? llama_family().config("tiny") : gpt2_family().config("tiny");
    c.L = layers;
    c.C = 32;
    c.NH = c.NKV = 2;
    c.F = 64;
    c.V = kV;
    c.max_T = kT;
    return c;
}

OptimizerOptions optimizer_options(Method method) {
    OptimizerOptions o;
    o.method = method;
    o.ns_dtype = DType::f32;
    return o;
}

// A run of a dozen steps on random tokens.
struct Training {
    Context context;
    TempDir folder;
    Loader loader;
    std::unique_ptr<Model> model;
    TrainerOptions options;
    Optimizer optimizer;
    Trainer trainer;

    Training(bool llama, Method method, bool graphs, Ortho ortho = Ortho::polar_express, int layers = 2,
             int offloaded_blocks = 0, bool ahead = true)
        : loader(written_data(folder)),
          model(make_decoder(small_config(llama, layers), {.B = kB, .T = kT, .offloaded_blocks = offloaded_blocks},
                             context)),
          options(trainer_options(method, graphs, ortho, ahead)),
          optimizer(model->params(), options.optimizer, context),
          trainer(*model, optimizer, loader, options, context) {
        model->params().initialize(1, context.stream);
    }

    std::vector<float> weights() { return fetch(masters_of(model->params()), model->table().size(), context.stream); }

    // Another loader of the same batches.
    Loader same_data() const { return Loader(open_shards(folder.path(), "train"), loader_options()); }

private:
    static Loader written_data(const TempDir& folder) {
        std::vector<uint32_t> tokens;
        for (int token : random_ints(4000, 3, kV)) tokens.push_back(static_cast<uint32_t>(token));
        write_shard(folder / "a_train_000000.bin", tokens);
        return Loader(open_shards(folder.path(), "train"), loader_options());
    }
    static LoaderOptions loader_options() { return {.B = kB, .T = kT, .vocab_size = kV}; }
    static TrainerOptions trainer_options(Method method, bool graphs, Ortho ortho, bool ahead) {
        TrainerOptions o;
        o.steps = 12;
        o.batch_tokens = kMicroSteps * kB * kT;
        o.micro_steps = kMicroSteps;
        o.optimizer = optimizer_options(method);
        o.optimizer.ortho = ortho;
        o.graphs = graphs;
        o.ahead = ahead;
        return o;
    }
};

// Sum of a batch's cross-entropies in nats, in float64 from the model's logits.
double sum_of_losses(Training& t, const Batch& batch) {
    const int rows = batch.B * batch.T;
    Buffer<float> on_device(int64_t{rows} * kV);
    t.model->logits(on_device.data(), batch, 0, rows);
    const std::vector<float> logits = fetch(on_device, t.context.stream);
    const std::vector<int> targets = fetch(batch.targets, rows, t.context.stream);
    double sum = 0;
    for (int row = 0; row < rows; ++row) {
        const float* x = logits.data() + int64_t{row} * kV;
        double exponentials = 0;
        for (int v = 0; v < kV; ++v) exponentials += std::exp(double{x[v]} - x[targets[row]]);
        sum += std::log(exponentials);
    }
    return sum;
}

}  // namespace

TEST_CASE("train/trainer: a step allocates nothing, frees nothing and does not wait for the device") {
    if (!counters()) SKIP_TEST("a GPU does not count what it is asked for");
    for (const Method method : {Method::adamw, Method::lion, Method::muon, Method::normuon, Method::teon})
        for (const bool llama : {false, true})
            for (const bool graphs : {false, true}) {
                CAPTURE(llama, graphs);
                Training t(llama, method, graphs);
                // After these steps, buffers have grown to their size, and each of the 4 places of a batch has its
                // graphs, for a first and for a later micro-step: 4 steps after the first.
                for (int i = 0; i < 5; ++i) t.trainer.step();

                const cpu::Counters& now = *counters();
                const int64_t allocations = now.allocations;
                const int64_t frees = now.frees;
                const int64_t waits = now.waits;
                const int64_t pageable = now.pageable_waits;
                const int64_t events = now.event_waits;
                const int64_t launches = now.launches;
                constexpr int kSteps = 4;
                for (int i = 0; i < kSteps; ++i) REQUIRE(t.trainer.step().has_value());
                REQUIRE(now.allocations == allocations);
                REQUIRE(now.frees == frees);
                REQUIRE(now.waits == waits);
                REQUIRE(now.pageable_waits == pageable);
                // For the copy of the batch before last, in each micro-batch, and for the metrics of the step before.
                REQUIRE(now.event_waits <= events + kSteps * (kMicroSteps + 1));
                // In addition to the graphs, five kernels: the loss, the norm of the gradients and the decision.
                REQUIRE((now.launches <= launches + kSteps * 5) == graphs);
                t.trainer.finish();
            }
}

TEST_CASE("train/trainer: replayed from graphs, steps give the bits of steps that are queued") {
    for (const Method method : {Method::adamw, Method::lion, Method::muon, Method::normuon, Method::teon})
        for (const bool llama : {false, true})
            for (const Ortho ortho : {Ortho::polar_express, Ortho::svd}) {
                CAPTURE(llama);
                Training queued(llama, method, false, ortho);
                Training replayed(llama, method, true, ortho);
                // By the fifth step each graph exists, and by the ninth it is replayed. Learning rates rise and fall.
                for (int i = 0; i < 12; ++i) {
                    const auto expected = queued.trainer.step();
                    const auto step = replayed.trainer.step();
                    REQUIRE(expected.has_value() == step.has_value());
                    if (!step) continue;
                    REQUIRE(step->loss == expected->loss);
                    REQUIRE(step->grad_norm == expected->grad_norm);
                    REQUIRE(step->skip == expected->skip);
                }
                REQUIRE(same_bits(replayed.weights(), queued.weights()));
            }
}

// Logits are computed between the steps, so that this holds between replays of graphs, too.
TEST_CASE("train/trainer: the loss of a step is the mean over its micro-batches, from logits in float64") {
    for (const bool llama : {false, true})
        for (const bool graphs : {false, true}) {
            CAPTURE(llama, graphs);
            Training t(llama, Method::teon, graphs, Ortho::polar_express, 2, 0, false);
            Loader batches = t.same_data();
            for (int step = 0; step < 10; ++step) {
                double sum = 0;
                for (int i = 0; i < kMicroSteps; ++i) sum += sum_of_losses(t, batches.next(t.context.stream));
                const double expected = sum / (kMicroSteps * kB * kT);
                const auto metrics = t.trainer.step();
                REQUIRE(metrics.has_value());
                // 96 losses, each with the rounding errors of a sum of 50 exponentials, are summed in float.
                REQUIRE(std::abs(metrics->loss - expected) <= 16 * kUnitRoundoff<float> * expected);
            }
        }
}

TEST_CASE("train/trainer: an evaluation between steps that are replayed changes no bit, and is right") {
    for (const bool llama : {false, true}) {
        CAPTURE(llama);
        Training undisturbed(llama, Method::teon, true);
        Training evaluated(llama, Method::teon, true);
        Training queued(llama, Method::teon, false);
        constexpr int kWindows = 5;  // the last batch is not full
        Loader validation = evaluated.same_data();
        Loader again = queued.same_data();
        Evaluator evaluator(*evaluated.model, validation, kB, kT, kWindows, evaluated.context);
        Evaluator expected(*queued.model, again, kB, kT, kWindows, queued.context);
        for (int i = 0; i < 12; ++i) {
            for (Training* t : {&undisturbed, &evaluated, &queued}) t->trainer.step();
            if (i % 3 == 2) REQUIRE(evaluator.run()->loss == expected.run()->loss);
        }
        REQUIRE(same_bits(evaluated.weights(), undisturbed.weights()));
    }
}

TEST_CASE("train/trainer: with blocks offloaded, steps that are queued or replayed give the same bits") {
    for (const bool llama : {false, true}) {
        CAPTURE(llama);
        Training kept(llama, Method::teon, false, Ortho::polar_express, 5);
        Training queued(llama, Method::teon, false, Ortho::polar_express, 5, 3);
        Training replayed(llama, Method::teon, true, Ortho::polar_express, 5, 2);
        for (int i = 0; i < 8; ++i) {
            const auto expected = kept.trainer.step();
            for (Training* other : {&queued, &replayed}) {
                const auto step = other->trainer.step();
                REQUIRE(step.has_value() == expected.has_value());
                REQUIRE((!step || (step->loss == expected->loss && step->grad_norm == expected->grad_norm)));
            }
        }
        REQUIRE(same_bits(queued.weights(), kept.weights()));
        REQUIRE(same_bits(replayed.weights(), kept.weights()));
    }
}

TEST_CASE("train/trainer: a step that is profiled is queued, with graphs too") {
    if (!counters()) SKIP_TEST("a GPU does not count what it is asked for");
    Training t(false, Method::teon, true);
    for (int i = 0; i < 6; ++i) t.trainer.step();
    Profiler profiler(t.context.stream);
    const int64_t launches = counters()->launches;
    t.trainer.step();
    REQUIRE(counters()->launches > launches + 5);
    REQUIRE(profiler.result().rows.size() > 5);
    t.trainer.finish();
}
