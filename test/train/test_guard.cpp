#include "train/guard.h"

#include <cmath>
#include <functional>
#include <random>

#include "kernels/step_control.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/temp_dir.h"
#include "test/support/transfer.h"
#include "test/support/whole_params.h"
#include "test/support/write_shard.h"
#include "train/trainer.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr float kBeta1 = 0.9f;
constexpr float kBeta2 = 0.95f;

// Calls step_control with one loss and gradient norm after the other.
struct Steps {
    Stream stream;
    Guarded<StepControl> control{std::vector<StepControl>{{}}, stream};
    Guarded<float> norm_squared{1, stream}, loss{1, stream};
    float limit;
    explicit Steps(float spike_limit = 0) : limit(spike_limit) {}
    StepControl operator()(float loss_value, float norm) {
        norm_squared.set({norm * norm});
        loss.set({loss_value});
        step_control(control.data(), norm_squared.data(), loss.data(), 1.0f, 0.0f, limit, kBeta1, kBeta2, stream);
        return control.get()[0];
    }
};

bool same_stats(const SeriesStats& a, const SeriesStats& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

TEST_CASE("train/guard: z-scores are those of mean and variance of the steps before") {
    Steps step;
    std::mt19937 random(3);
    std::normal_distribution<double> normal(5.0, 0.25);
    std::vector<double> seen;
    for (int i = 0; i < 100; ++i) {
        const float x = static_cast<float>(normal(random));
        double mean = 0;
        double variance = 0;
        for (double y : seen) mean += y / static_cast<double>(seen.size());
        for (double y : seen) variance += (y - mean) * (y - mean) / static_cast<double>(seen.size());
        const double expected = i < 16 ? 0 : (x - mean) / std::sqrt(variance);
        const StepControl c = step(x, 2 * x);
        // The error of 100 updates of mean and variance, with a few roundings to 2^-24 each, is magnified because the
        // values are 20 deviations from zero.
        REQUIRE(std::abs(c.loss_z - expected) <= 1e-3);
        REQUIRE(std::abs(c.grad_norm_z - expected) <= 1e-3);
        REQUIRE(std::abs(expected) <= 4);  // larger ones would be counted as less
        seen.push_back(x);
    }
}

TEST_CASE("train/guard: a value that is not finite leaves the statistics alone and the next step is judged as ever") {
    Steps step(8.0f);
    StepControl before;
    for (int i = 0; i < 40; ++i)
        before = step(3.0f + 0.01f * static_cast<float>(i % 5), 1.0f + 0.02f * static_cast<float>(i % 3));
    const float bad[] = {NAN, INFINITY, -INFINITY};
    int row = 0;
    for (float x : bad) {
        const StepControl c = step(x, 1.0f);
        REQUIRE(c.skip == kSkipNonfinite);
        REQUIRE(c.skipped_in_row == ++row);
        REQUIRE(std::isinf(c.loss_z));
        REQUIRE(same_stats(c.loss_stats, before.loss_stats));
        REQUIRE(same_stats(c.grad_norm_stats, before.grad_norm_stats));
        REQUIRE(c.updates == before.updates);
    }
    const StepControl after = step(3.02f, 1.02f);
    REQUIRE(after.skip == 0);
    REQUIRE(after.skipped_in_row == 0);
    REQUIRE(std::abs(after.loss_z) < 3);
    REQUIRE(step(4.0f, 1.0f).skip == kSkipSpike);  // spikes are still detected
}

TEST_CASE("train/guard: a spike is skipped, in the loss or in the norm, and a lasting change is accepted in time") {
    for (bool in_norm : {false, true}) {
        Steps step(8.0f);
        auto at = [&](float level, int i) {
            const float x = level + 0.05f * static_cast<float>(i * 7 % 11);
            return in_norm ? step(3.0f, x) : step(x, 3.0f);
        };
        for (int i = 0; i < 200; ++i) REQUIRE(at(2.0f, i).skip == 0);
        StepControl c = at(12.0f, 0);
        REQUIRE(c.skip == kSkipSpike);
        REQUIRE(c.scale == 0.0f);
        REQUIRE(c.updates == 200);
        REQUIRE((in_norm ? c.grad_norm_z : c.loss_z) > 8.0f);
        REQUIRE(at(2.0f, 1).skip == 0);
        REQUIRE(at(1.0f, 1).skip == 0);  // a lower value is no spike
        int skipped = 0;
        while (at(4.0f, skipped).skip != 0) REQUIRE(++skipped < 128);
        REQUIRE(skipped > 3);
    }
    Steps off;  // without a limit nothing is skipped
    for (int i = 0; i < 50; ++i) off(2.0f + 0.01f * static_cast<float>(i % 3), 1.0f);
    REQUIRE(off(1e6f, 1e6f).skip == 0);
}

TEST_CASE("train/guard: series that do not vary, explode or vanish keep finite statistics") {
    Steps step(8.0f);
    for (float x : {1.0f, 0.0f, 1e30f, 1e-30f, 3e38f, 2.0f})
        for (int i = 0; i < 300; ++i) {
            const StepControl c = step(x, 1.0f);
            for (float y : {c.loss_stats.mean, c.loss_stats.variance, c.loss_z}) REQUIRE(!std::isnan(y));
            REQUIRE(c.loss_stats.variance >= 0.0f);
        }
    Steps constant(8.0f);
    for (int i = 0; i < 300; ++i) REQUIRE(constant(1.0f, 1.0f).skip == 0);
    REQUIRE(constant(1.001f, 1.0f).skip == 0);  // a thousandth more is no spike
    REQUIRE(constant(2.0f, 1.0f).skip == kSkipSpike);
}

TEST_CASE("train/guard: log entries name the reason") {
    StepMetrics m;
    m.loss = 3;
    REQUIRE(!guard_event(m, 5));
    m.loss_z = 6;
    m.grad_norm_z = 1;
    REQUIRE(!guard_event(m, 0));
    REQUIRE(guard_event(m, 5)->name == "spike");
    m.skip = kSkipSpike;
    REQUIRE(guard_event(m, 0)->name == "update_skipped");
    REQUIRE(guard_event(m, 0)->reason == "loss 6.0 and gradient norm 1.0 standard deviations high");
    m.skip = kSkipNonfinite;
    REQUIRE(guard_event(m, 0)->reason == "non-finite gradient");
    m.grad_norm = INFINITY;  // of finite gradients, too
    REQUIRE(guard_event(m, 0)->reason == "gradient norm above 1.8e19");
    m.loss = NAN;
    REQUIRE(guard_event(m, 0)->reason == "non-finite loss");
}

// ---- planted in training ------------------------------------------------------------------------

namespace {

constexpr int kMicroSteps = 3;
constexpr int kB = 2;
constexpr int kT = 4;

// A model with one matrix. Its loss and gradient depend only on the number of the micro-batch; `plant` can spoil them.
class PlantedModel : public Model {
public:
    std::function<void(int64_t call, float& loss, float& gradient)> plant;

    explicit PlantedModel(const Stream& stream) : stream_(stream) {
        ParamTable table;
        ParamRow row;
        row.name = "h.0.attn.q.weight";
        row.role = Role::q;
        row.layer = 0;
        row.rows = row.logical_rows = row.cols = row.logical_cols = 8;
        row.decay = true;
        row.init_std = 0.5f;
        table.add(row);
        params_ = std::make_unique<ParamStore>(table, DType::f32, stream);
        params_->initialize(1, stream);
    }
    void forward_backward(float* losses, const Batch& batch, float grad_scale, bool accumulate,
                          const std::function<void(int)>&) override {
        std::vector<float> loss(static_cast<size_t>(batch.B * batch.T), 2.0f);
        std::vector<float> gradient(64);
        for (size_t i = 0; i < 64; ++i)
            gradient[i] = std::sin(static_cast<float>(i) + 0.1f * static_cast<float>(call_));
        if (plant) plant(call_, loss[1], gradient[5]);
        const std::vector<float> before = fetch(gradients_of(*params_), 64, stream_);
        for (size_t i = 0; i < 64; ++i) gradient[i] = (accumulate ? before[i] : 0.0f) + grad_scale * gradient[i];
        put(gradients_of(*params_), gradient, stream_);
        put(losses, loss, stream_);
        ++call_;
    }
    void forward(float*, const Batch&) override { throw Error("not for this test"); }
    void logits(float*, const Batch&, int, int) override { throw Error("not for this test"); }

private:
    const Stream& stream_;
    int64_t call_ = 0;
};

struct TrainedSteps {
    std::vector<std::vector<float>> weights;  // after each step: master weights and optimizer state
    std::vector<StepMetrics> metrics;
    std::vector<StepControl> control;
};

TrainedSteps train(int steps, Method method, float skip_spikes, std::function<void(int64_t, float&, float&)> plant) {
    TempDir folder;
    write_shard(folder / "a_train_000000.bin", std::vector<uint32_t>(4000, 1));
    Context context;
    Loader loader(open_shards(folder.path(), "train"), {.B = kB, .T = kT, .vocab_size = 2});
    PlantedModel model(context.stream);
    model.plant = std::move(plant);
    TrainerOptions o;
    o.steps = steps;
    o.batch_tokens = kMicroSteps * kB * kT;
    o.micro_steps = kMicroSteps;
    o.skip_spikes = skip_spikes;
    o.optimizer.method = method;
    o.optimizer.teon_k = 1;
    o.optimizer.teon_roles = {Role::q};
    o.optimizer.ns_dtype = DType::f32;
    o.schedule.kind = ScheduleKind::constant;
    o.schedule.warmup_ratio = 0;
    Optimizer optimizer(model.params(), o.optimizer, context);
    Trainer trainer(model, optimizer, loader, o, context);
    TrainedSteps result;
    for (int i = 0; i < steps; ++i) {
        if (auto m = trainer.step()) result.metrics.push_back(*m);
        result.metrics.push_back(*trainer.finish());
        result.control.push_back(trainer.control());
        std::vector<float> all = fetch(masters_of(model.params()), 64, context.stream);
        for (const StateTensor& t : optimizer.state()) {
            const std::vector<float> state = fetch(t.data, t.size(), context.stream);
            all.insert(all.end(), state.begin(), state.end());
        }
        result.weights.push_back(std::move(all));
    }
    return result;
}

}  // namespace

TEST_CASE("train/guard: NaN or Inf in the loss or gradient of one micro-batch skips that step and nothing else") {
    for (Method method : {Method::adamw, Method::lion, Method::normuon, Method::teon})
        for (float bad : {NAN, INFINITY, -INFINITY})
            for (bool in_loss : {true, false})
                for (int micro = 0; micro < kMicroSteps; ++micro) {
                    const int64_t spoiled = 3 * kMicroSteps + micro;  // in step 4
                    const TrainedSteps run = train(6, method, 0, [&](int64_t call, float& loss, float& gradient) {
                        if (call == spoiled) (in_loss ? loss : gradient) = bad;
                    });
                    INFO(name_of(method) << " " << bad << (in_loss ? " loss " : " gradient ") << micro);
                    for (int step = 0; step < 6; ++step) {
                        REQUIRE(run.metrics[step].step == step + 1);
                        REQUIRE(run.metrics[step].skip == (step == 3 ? kSkipNonfinite : 0));
                        for (float x : run.weights[step]) REQUIRE(std::isfinite(x));
                    }
                    REQUIRE(same_bits(run.weights[3], run.weights[2]));
                    REQUIRE(!same_bits(run.weights[4], run.weights[3]));
                    REQUIRE(run.control[3].updates == 3);
                    REQUIRE(run.control[5].updates == 5);
                }
}

TEST_CASE("train/guard: a spike in one micro-batch is skipped where that is asked for") {
    for (float limit : {0.0f, 10.0f}) {
        const TrainedSteps run = train(40, Method::adamw, limit, [&](int64_t call, float&, float& gradient) {
            if (call / kMicroSteps == 30) gradient = 1e4f;
        });
        REQUIRE(run.metrics[30].grad_norm_z > 10);
        REQUIRE(run.metrics[30].skip == (limit > 0 ? kSkipSpike : 0));
        REQUIRE(bool(same_bits(run.weights[30], run.weights[29])) == (limit > 0));
        REQUIRE(run.metrics[31].skip == 0);
    }
}
