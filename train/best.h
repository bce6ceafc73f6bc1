// The lowest validation loss of a run, for --keep-best and --patience.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/checkpoint.h"
#include "train/metrics.h"

namespace teon {

// A run's evaluations so far. Checkpoints have it (TrainingState::best), up to the evaluation before the save; the log
// has the evaluations after that.
struct BestLoss : BestEvaluation {
    // Counts an evaluation, unless one of its step or a later one has been counted. Returns whether its loss is the
    // lowest so far; NaN never is.
    bool count(const LoggedEvaluation& e);
    // Returns why a run with this --patience stops, or an empty string. patience 0: none.
    std::string out_of_patience(int64_t patience) const;
};

}  // namespace teon
