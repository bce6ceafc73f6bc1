// Continuing a run from its newest whole checkpoint.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "train/setup.h"

namespace teon {

struct ResumePoint {
    FoundCheckpoint found;
    TrainingState state;
};

// nullopt if the run's folder holds no checkpoint at all. Throws Error naming each fault if it holds some but none is
// whole.
std::optional<ResumePoint> find_resume_point(const std::string& run_folder);

// What a run that resumes must have in common with the one that was saved: options, model, resolved micro-batch and
// steps, data.
nlohmann::json run_json(const ModelFamily& family, const Setup& setup);
// Throws UsageError that lists what differs.
void check_unchanged(const ModelFamily& family, const nlohmann::json& saved, const Setup& setup);

// Removes what a kill left half written, and renames checkpoints that were passed over to step_X.damaged: the run will
// come to their steps again.
void clear_remains(const std::string& run_folder, const FoundCheckpoint& found);

}  // namespace teon
