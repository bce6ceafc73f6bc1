// Saving as the training loop does it: what all ranks hold comes together, and what becomes of a save is told.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/checkpoint_writer.h"
#include "model/model.h"
#include "train/log.h"
#include "train/setup.h"

namespace teon {

// On every rank; rank 0 writes. All that it is given outlives it.
class Saver {
public:
    Saver(const Setup& setup, Model& model, Optimizer& optimizer, Context& context, MetricsFile& metrics,
          Console& console);

    // Begins a checkpoint (train/checkpoint_writer.h) and, if `wait`, ends it. Called on all ranks. The gradients are
    // lost.
    void save(const TrainingState& state, bool wait);
    // Tells of the save that finished since the last call, or of the one in flight if `wait`; `step` is the run's.
    // Throws Error if it failed and --on-save-error is stop.
    void report(bool wait, int64_t step);

    // The run goes on from its checkpoint of `step`; older ones that are not to be kept are removed.
    void resumed_at(int64_t step);
    int64_t newest() const { return newest_; }           // step of the newest checkpoint that was written; 0: none
    const std::string& fault() const { return fault_; }  // of the last save; empty if it succeeded

private:
    const Options& o_;
    Model& model_;
    Optimizer& optimizer_;
    Context& ctx_;
    MetricsFile& metrics_;
    Console& console_;
    std::unique_ptr<CheckpointWriter> writer_;  // of rank 0
    int64_t newest_ = 0;
    std::string fault_;
};

}  // namespace teon
