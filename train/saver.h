// Checkpoints of a run: collects weights and optimizer state from the ranks, and reports the outcome of each save, its
// duration also to StopRequest.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/checkpoint_writer.h"
#include "model/model.h"
#include "plan/run_plan.h"
#include "train/console.h"
#include "train/metrics.h"
#include "train/stop.h"

namespace teon {

// Create one on every rank; rank 0's writes the files. The constructor's arguments must outlive it.
class Saver {
public:
    Saver(const RunPlan& run, Model& model, Optimizer& optimizer, Context& context, MetricsFile& metrics,
          Console& console, StopRequest& stop);

    // Begins a checkpoint (checkpoint/checkpoint_writer.h), with `best` that of the lowest validation loss so far; with
    // `wait`, waits until it is written. Call it on all ranks. Overwrites the gradients.
    void save(const TrainingState& state, std::optional<double> best, bool wait);
    // Makes the checkpoint of `step` the best one, if it exists. Waits for the save in flight. Call it on all ranks.
    void mark_best(int64_t step, double loss);
    // Reports the save that finished since the last call. Throws Error if it failed and --on-save-error is stop.
    void report() { report(false); }
    // The same, after waiting for the save in flight. Call it on all ranks.
    void wait();

    // Removes the checkpoints that are not to be kept beside the checkpoint of `step`, from which the run resumes.
    void remove_old(int64_t step);
    const std::string& fault() const { return fault_; }  // of the last save; empty if it succeeded

private:
    void report(bool wait);

    const Options& o_;
    Model& model_;
    Optimizer& optimizer_;
    Context& ctx_;
    MetricsFile& metrics_;
    Console& console_;
    StopRequest& stop_;
    std::unique_ptr<CheckpointWriter> writer_;  // on rank 0
    std::string fault_;
};

}  // namespace teon
