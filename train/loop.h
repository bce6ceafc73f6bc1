// The training loop: steps, evaluations, diagnostics, checkpoints, and how a run ends.
#pragma once

#include <optional>

#include "train/log.h"
#include "train/resume.h"
#include "train/setup.h"

namespace teon {

// Trains from step 1, or from a resume point, to setup.steps, or until it is told to stop (then it has saved). The
// folder setup.options.out exists. Throws Error where the run cannot go on.
void run_training(const ModelFamily& family, const Setup& setup, const DeviceInfo& device,
                  const std::optional<ResumePoint>& resume);

}  // namespace teon
