// The lowest validation loss of a run, for --keep-best and --patience.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "train/metrics.h"

namespace teon {

// A run's evaluations so far. Its log is the memory: counting the logged evaluations again gives the same state.
struct BestLoss {
    double loss = std::numeric_limits<double>::infinity();
    int64_t step = 0;   // of the first evaluation with this loss; 0: none yet
    int64_t since = 0;  // evaluations after it

    // Counts an evaluation. Returns whether its loss is the lowest so far; NaN never is.
    bool count(const LoggedEvaluation& e);
    // Returns why a run with this --patience stops, or an empty string. patience 0: none.
    std::string out_of_patience(int64_t patience) const;

    std::string text() const;  // for other ranks
    static BestLoss parse(const std::string& text);
};

}  // namespace teon
