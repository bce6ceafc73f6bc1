// One optimizer step: forward and backward passes of micro-batches, norm, clipping, update. A step neither allocates
// nor waits for the device, and most of it can be replayed from graphs. Its metrics are read back when the next step
// has been queued.
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
    bool graphs = false;  // after the first step, replay from graphs the work that every step repeats
    bool ahead = true;    // step() queues the next step while the device computes the last one
};

class Trainer {
public:
    Trainer(Model& model, Optimizer& optimizer, Loader& loader, const TrainerOptions& options, Context& context);
    ~Trainer();

    // Queues the next step, and waits for the step before it (without `ahead`: for the queued step). Returns that
    // step's metrics. Each step's metrics are returned once; nullopt: there are none to return.
    std::optional<StepMetrics> step();
    // Waits for the last queued step and returns its metrics, unless step() has returned them.
    std::optional<StepMetrics> finish();
    // Whether some rank gave up (Context::give_up) during a step. That step and the ones queued after it then have no
    // effect on any rank and no metrics; no other step may follow.
    bool aborted() const;
    int64_t steps_done() const;  // queued so far and not aborted
    // Sets `stop` in the metrics of the next step and all later ones, or `save` in those of the next step, on every
    // rank, so that all ranks stop or save after the same step.
    void request_stop();
    void request_save();
    // Step control and next sample after the step whose metrics were returned last, for a checkpoint.
    const StepControl& control() const;
    int64_t next_sample() const;
    // Continues a saved run after step `done`. Call it before the first step.
    void restore(int64_t done, const StepControl& control, int64_t next_sample);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
