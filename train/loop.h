// The training loop: steps, evaluations, diagnostics, checkpoints, and how a run ends.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "train/log.h"
#include "train/resume.h"
#include "train/setup.h"
#include "train/stop.h"

namespace teon {

struct TrainingStart {
    std::optional<ResumePoint> resume;  // nullopt: from step 1
    nlohmann::json changes;             // what check_unchanged() said
    std::function<void()> open_folder;  // called on every rank once nothing is left that could not work
};

// Trains to setup.steps, or until it is told to stop: then all ranks have saved, and the signal that this one was told
// by is returned, else 0. Throws Error where the run cannot go on.
int run_training(const ModelFamily& family, const Setup& setup, const DeviceInfo& device, Context& context,
                 const TrainingStart& start, StopRequest& stop);

}  // namespace teon
