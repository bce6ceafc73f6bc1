// What a run prints: a line per step, an ETA, notes, and the profile of --profile-steps.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/profiler.h"
#include "train/live_line.h"
#include "train/metrics.h"

namespace teon {

// Prints a line per step with an ETA from the last steps' time, and MFU where the device's peak is known; on a
// terminal, one live line instead (train/live_line.h). When standard output fails (`| head`, a closed terminal), it
// reports that once on standard error, and the run continues.
class Console {
public:
    Console(int64_t total_steps, int64_t log_every, double flops_per_token, double peak_flops);
    void step(const StepMetrics& m);
    void note(const std::string& text);  // a line

private:
    bool complained_ = false;
    int64_t total_, log_every_;
    double flops_per_token_, peak_flops_;
    double smoothed_ms_ = 0;
    LiveLine live_;
};

// Of `steps` steps: share, time, calls and GFLOP/s of each kernel and product, the most expensive first, `most` of
// them.
std::string profile_table(const Profile& profile, int64_t steps, size_t most = SIZE_MAX);

}  // namespace teon
