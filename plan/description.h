// What a run is, as JSON: in config.json of its folder, in its checkpoints, and for --resume to compare.
#pragma once

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "plan/run_plan.h"
#include "runtime/device.h"

namespace teon {

// For checkpoints: options, model, data, resolved micro-batch and steps.
nlohmann::json run_json(const RunPlan& plan);

// All that identifies the experiment that a run is, but its seed: runs of which this is equal may be compared as seeds.
// It names no files: data and weights are known by their content.
nlohmann::json experiment_json(const RunPlan& plan);

// config.json of the run's folder. changes: check_unchanged()'s.
nlohmann::ordered_json config_json(const RunPlan& plan, const DeviceInfo& device, const nlohmann::json& changes);

// Throws UsageError that lists what differs from the run that was saved. The validation data may differ, and the length
// where the learning rate so far does not depend on it: returns a list of {"step", "event", "reason"}, those of earlier
// resumes first.
nlohmann::json check_unchanged(const RunPlan& plan, const TrainingState& saved);

}  // namespace teon
