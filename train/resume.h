// Continuing a run from its newest whole checkpoint.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "runtime/context.h"
#include "train/setup.h"

namespace teon {

struct ResumePoint {
    FoundCheckpoint found;
    TrainingState state;
};

// nullopt if the run's folder holds no checkpoint at all. Throws Error naming each fault if it holds some but none is
// whole.
std::optional<ResumePoint> find_resume_point(const std::string& run_folder);

// On every rank, what rank 0 found: the same checkpoint, by its step and its manifest, whole as this rank sees it.
// Throws Error naming the rank and the folder where it is not.
std::optional<ResumePoint> resume_point_of_rank_0(const std::string& run_folder, std::optional<ResumePoint> own,
                                                  Context& context);

// What a run that resumes must have in common with the one that was saved: options, model, resolved micro-batch and
// steps, data.
nlohmann::json run_json(const ModelFamily& family, const Setup& setup);
// Throws UsageError that lists what differs. The length may, where the learning rate so far does not depend on it: then
// says what changes; else empty.
std::string check_unchanged(const ModelFamily& family, const TrainingState& saved, const Setup& setup);

// Removes what a kill left half written, and renames checkpoints that were passed over to step_X.damaged: the run will
// come to their steps again.
void clear_remains(const std::string& run_folder, const std::optional<ResumePoint>& point);

}  // namespace teon
