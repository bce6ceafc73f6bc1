// The training loop: steps, evaluations, diagnostics, checkpoints, and how a run ends.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "files/json.h"
#include "plan/run_plan.h"
#include "train/resume.h"
#include "train/stop.h"

namespace teon {

struct TrainingStart {
    std::optional<ResumePoint> resume;  // nullopt: begin with step 1
    Json changes;                       // check_unchanged()'s
    std::function<void()> open_folder;  // called on every rank after everything that may refuse to work
};

// Trains to plan.steps, or until a signal or a time limit stops the run and all ranks have saved. Returns the exit
// status; minus SIGINT if the process is to end by that signal. Throws Error if the run cannot continue. status.json in
// the run's folder follows (train/run_folder.h).
int run_training(const RunPlan& plan, const DeviceInfo& device, Context& context, const TrainingStart& start,
                 StopRequest& stop);

}  // namespace teon
