// One optimizer step: micro-batches forward and backward, norm, clipping, update. Nothing in a step allocates or waits
// for the device, and most of it may be replayed from graphs; metrics are read back when the step after is queued.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "data/loader.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "train/log.h"

namespace teon {

struct TrainerOptions {
    int64_t steps = 0;
    int64_t batch_tokens = 0;  // of a step, over all ranks and micro-batches
    int micro_steps = 1;
    float grad_clip = 1.0f;
    float skip_spikes = 0;  // StepControl's spike_limit
    OptimizerOptions optimizer;
    Schedule schedule;
    bool graphs = false;  // after its first step, a trainer replays what is the same at every step
    bool ahead = true;  // step() queues a step while the one before is computed: for devices that work beside the host
};

class Trainer {
public:
    Trainer(Model& model, Optimizer& optimizer, Loader& loader, const TrainerOptions& options, Context& context);
    ~Trainer();

    // Queues the next step. Returns the metrics of the step before, if there is one that has not been returned; not
    // `ahead`, those of this step, which it waits for.
    std::optional<StepMetrics> step();
    // Waits for the last queued step and returns its metrics, unless they were returned.
    std::optional<StepMetrics> finish();
    int64_t steps_done() const;  // queued so far and not given up
    // A step was given up, because the context's give_up said so on some rank while it computed: on every rank it is as if
    // that step and those behind it had not begun. No other step may follow.
    bool given_up() const;
    // Of the next step's metrics, `stop` will be true on every rank. For a rank that wants all to stop after the same
    // step.
    void request_stop();
    // Likewise, once: of the next step's metrics, `save` will be true on every rank.
    void request_save();
    // What the step of the last metrics returned left, and the sample that comes next, for a checkpoint.
    const StepControl& control() const;
    int64_t next_sample() const;
    // Continues after step `done` of a run that was saved. Before the first step.
    void restore(int64_t done, const StepControl& control, int64_t next_sample);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

struct EvalResult {
    double loss = 0;  // nats per token, mean
    int64_t tokens = 0;
};

// Mean loss over the first `windows` windows of the loader (not shuffled, made for this rank, of batches of B x T), the
// same ones every time. The ranks share the work; the result is the same on each and, batch by batch, in the order of
// one rank.
class Evaluator {
public:
    Evaluator(Model& model, Loader& loader, int B, int T, int64_t windows, Context& context);
    // Allocates nothing on the device; synchronizes. Where the context's give_up says yes on any rank, there is no result
    // on any.
    std::optional<EvalResult> run();

private:
    Model& model_;
    Loader& loader_;
    Context& ctx_;
    const int B_, T_;
    const int64_t windows_, rounds_;  // rounds: batches of each rank
    // Losses of a batch; of this rank the sum of each batch, and whether it gave up; of all.
    Buffer<float> losses_, sums_, all_;
    Buffer<std::byte> scratch_;
};

}  // namespace teon
