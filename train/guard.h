// What the device's decision about a step (StepControl) means to the people who watch the run.
#pragma once

#include <optional>
#include <string>

#include "train/log.h"

namespace teon {

struct GuardEvent {
    std::string name;    // "update_skipped", "spike"
    std::string reason;  // "non-finite loss", "loss 12.1 and gradient norm 3.4 standard deviations high"
};

// What is to be logged of this step; nullopt if nothing is out of the ordinary. warn_spikes: standard deviations; 0:
// spikes that do not skip the update are not reported.
std::optional<GuardEvent> guard_event(const StepMetrics& m, double warn_spikes);

}  // namespace teon
