// One optimizer step: micro-batches forward and backward, norm, clipping, update. A step neither allocates nor waits
// for the device, and most of it can be replayed from graphs. Its metrics are read back when the next step has been
// queued.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "data/loader.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "train/metrics.h"

namespace teon {

struct TrainerOptions {
    int64_t steps = 0;
    int64_t batch_tokens = 0;  // of a step, over all ranks and micro-batches
    int micro_steps = 1;
    float grad_clip = 1.0f;
    DType grad_comm_dtype = DType::f32;
    float skip_spikes = 0;  // StepControl's spike_limit
    OptimizerOptions optimizer;
    Schedule schedule;
    bool graphs = false;  // replay from graphs what is the same at every step, after the first
    bool ahead = true;    // step() queues the next step while the device computes the last one
};

class Trainer {
public:
    Trainer(Model& model, Optimizer& optimizer, Loader& loader, const TrainerOptions& options, Context& context);
    ~Trainer();

    // Queues the next step. Returns the metrics of the step before it, unless they were returned; without `ahead`,
    // waits for the step and returns its own.
    std::optional<StepMetrics> step();
    // Waits for the last queued step and returns its metrics, unless they were returned.
    std::optional<StepMetrics> finish();
    int64_t steps_done() const;  // queued so far and not aborted
    // The context's give_up returned true on some rank during a step: on every rank that step and those behind it have
    // no effect. No other step may follow.
    bool aborted() const;
    // Sets `stop`, or once `save`, in the next step's metrics on every rank, so that all stop or save after the same
    // step.
    void request_stop();
    void request_save();
    // Step control and next sample after the last reported step, for a checkpoint.
    const StepControl& control() const;
    int64_t next_sample() const;
    // Continues a saved run after step `done`. Call it before the first step.
    void restore(int64_t done, const StepControl& control, int64_t next_sample);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
