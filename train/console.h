// Output of a run: a line per step, an ETA, notes, and the profile of --profile-steps.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/cuda/profiler.h"
#include "train/live_line.h"
#include "train/metrics.h"

namespace teon {

// Prints a line per step with an ETA from the last steps' time, and MFU if the devices' peak is known
// (peak_tokens_per_s() in plan/step_time.h; else 0); on a terminal, one live line instead (train/live_line.h). If
// standard output fails (`| head`, a closed terminal), reports that once on standard error, and the run continues.
class Console {
public:
    Console(int64_t total_steps, int64_t log_every, double peak_tokens_per_s);
    void step(const StepMetrics& m);
    void note(const std::string& text);  // a line

private:
    bool complained_ = false;
    int64_t total_, log_every_;
    double peak_tokens_per_s_;
    double smoothed_ms_ = 0;
    LiveLine live_;
};

// Returns a table of share, time, calls and GFLOP/s of the `most` most expensive kernels and products, in descending
// order of time, over `steps` steps.
std::string profile_table(const Profile& profile, int64_t steps, size_t max_rows = SIZE_MAX);

}  // namespace teon
