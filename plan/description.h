// The description of a run as JSON: for config.json in its folder, for its checkpoints, and for --resume to compare.
#pragma once

#include "checkpoint/checkpoint.h"
#include "files/json.h"
#include "plan/run_plan.h"
#include "runtime/cuda/device.h"

namespace teon {

// Returns the description for checkpoints: options, model, data, resolved micro-batch and steps.
Json run_json(const RunPlan& plan);

// Returns everything that identifies the run's experiment except the seed: runs with equal results may be compared as
// seeds of one experiment. Identifies data and weights by their content and names no files.
Json experiment_json(const RunPlan& plan);

// Returns the content of config.json in the run's folder. changes: the result of check_unchanged().
Json config_json(const RunPlan& plan, const DeviceInfo& device, const Json& changes);

// Compares the plan with the saved run. Throws UsageError that lists the differences. Two differences are allowed:
// other validation data, and another length if the learning rate so far does not depend on it. Returns these as a list
// of {"step", "event", "reason"}, changes of earlier resumes first.
Json check_unchanged(const RunPlan& plan, const TrainingState& saved);

}  // namespace teon
