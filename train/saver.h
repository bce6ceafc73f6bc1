// Checkpoints of a run: collects what the ranks hold, and reports the outcome of each save.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/checkpoint_writer.h"
#include "model/model.h"
#include "plan/run_plan.h"
#include "train/console.h"
#include "train/metrics.h"

namespace teon {

// On every rank; rank 0 writes. All that it is given outlives it.
class Saver {
public:
    Saver(const RunPlan& run, Model& model, Optimizer& optimizer, Context& context, MetricsFile& metrics,
          Console& console);

    // Begins a checkpoint (checkpoint/checkpoint_writer.h) and, if `wait`, ends it. Called on all ranks. The gradients
    // are lost.
    void save(const TrainingState& state, bool wait);
    // Reports the save that finished since the last call. Throws Error if it failed and --on-save-error is stop.
    void report() { report(false); }
    // The same, after waiting for the save in flight. Called on all ranks.
    void wait();

    // Removes checkpoints that are not to be kept beside that of `step`, from which the run resumes.
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
    std::unique_ptr<CheckpointWriter> writer_;  // of rank 0
    std::string fault_;
};

}  // namespace teon
