// One optimizer step: forward and backward passes of micro-batches, norm, clipping, update. A step neither allocates
// nor waits for the device, and most of it can be replayed from graphs. Its metrics are read back when the next step
// has been queued.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/loader.h"
#include "kernels/reduce.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "train/gatherer.h"
#include "train/metrics.h"
#include "train/reducer.h"

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

    // Queues the next step, and waits for the step before it (without `ahead`: for the queued step). Returns that
    // step's metrics. Each step's metrics are returned once; nullopt: there are none to return.
    std::optional<StepMetrics> step();
    // Waits for the last queued step and returns its metrics, unless step() has returned them.
    std::optional<StepMetrics> finish();
    // Whether some rank gave up (Context::give_up) during a step. That step and the ones queued after it then have no
    // effect on any rank and no metrics; no other step may follow.
    bool aborted() const { return aborted_; }
    int64_t steps_done() const { return done_; }  // queued so far and not aborted
    // Sets `stop` in the metrics of the next step and all later ones, or `save` in those of the next step, on every
    // rank, so that all ranks stop or save after the same step.
    void request_stop() { stop_ = true; }
    void request_save() { save_ = true; }
    // Step control and next sample after the step whose metrics were returned last, for a checkpoint.
    const StepControl& control() const { return last_; }
    int64_t next_sample() const { return next_sample_; }
    // Continues a saved run after step `done`. Call it before the first step.
    void restore(int64_t done, const StepControl& control, int64_t next_sample);

private:
    // How many ranks request what in a step, as floats, which ranks can sum.
    struct RequestCounts {
        float stop = 0, aborted = 0, save = 0;
    };
    // A step in flight.
    struct Slot {
        explicit Slot(int ranks) : loss_sums(ranks) {}
        Event begin, backward_end, exchange_end, optimizer_begin, end;
        PinnedBuffer<float> loss_sum{1};
        PinnedBuffer<float> loss_sums;            // of each rank
        PinnedBuffer<RequestCounts> requests{1};  // this rank's, then those of all ranks
        PinnedBuffer<StepControl> control{1};
        StepMetrics metrics;
        int64_t next_sample = 0;  // after it
    };
    // The graph of forward and backward passes of a batch in one of the buffers that the loader uses in turn.
    struct MicroStep {
        Batch batch;
        bool accumulate;
        Graph graph;
    };

    bool queue_step();
    bool replays() const;
    void queue_micro_step(const Batch& batch, bool accumulate, bool last);
    void queue_update();
    void exchange(Slot& slot, const float* loss_sum);
    std::optional<StepMetrics> read_back();

    Model& model_;
    Optimizer& optimizer_;
    Loader& loader_;
    const TrainerOptions o_;
    Context& ctx_;
    Buffer<float> losses_;     // of one micro-batch
    Buffer<float> sums_{2};    // loss sum of the step; squared gradient norm
    Buffer<float> loss_sums_;  // of each rank in the step
    Buffer<RequestCounts> requests_{1};
    Buffer<StepControl> control_{1};
    Buffer<std::byte> scratch_{static_cast<int64_t>(reduce_scratch_bytes())};
    Reducer reducer_;
    Gatherer gatherer_;
    Slot slots_[2];
    std::vector<MicroStep> micro_steps_;
    std::optional<Graph> update_;
    // Whether a whole step has been queued: its kernels are loaded, its workspaces resized, its products chosen.
    bool warm_ = false;
    bool stop_ = false, save_ = false, aborted_ = false;
    int64_t done_ = 0, returned_ = 0;
    StepControl last_;         // of the step whose metrics were returned last
    int64_t next_sample_ = 0;  // after it
    PinnedBuffer<float> no_loss_{1};
};

}  // namespace teon
