// Events for the log, from the device's decision about a step (StepControl).
#pragma once

#include <optional>
#include <string>

#include "train/metrics.h"

namespace teon {

struct GuardEvent {
    std::string name;    // "update_skipped", "spike"
    std::string reason;  // "non-finite loss", "loss 12.1 and gradient norm 3.4 standard deviations high"
};

// Returns the event of this step, or nullopt if there is none. warn_spikes: the limit in standard deviations; 0: spikes
// that do not skip the update are not reported.
std::optional<GuardEvent> guard_event(const StepMetrics& m, double warn_spikes);

}  // namespace teon
