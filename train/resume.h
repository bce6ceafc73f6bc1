// Resuming a run from its newest whole checkpoint.
#pragma once

#include <optional>

#include "checkpoint/checkpoint.h"
#include "options/options.h"

namespace teon {

struct ResumePoint {
    FoundCheckpoint checkpoint;
    TrainingState state;
};

// Finds and reads the newest whole checkpoint. Returns nullopt if the run's folder holds no checkpoint at all. Throws
// Error naming each fault if it holds checkpoints but none is whole.
std::optional<ResumePoint> find_resume_point(const std::string& run_folder);

// Returns the step of the point's checkpoint and a hash of its manifest; "" without a point.
std::string identity_of(const std::string& run_folder, const std::optional<ResumePoint>& point);
// Reads the checkpoint of rank 0's identity on another rank. Throws Error naming the rank and the folder if it does not
// see that checkpoint, whole.
ResumePoint resume_point(const std::string& run_folder, const std::string& identity, int rank);

// Sets options.adopted to the model of --init-from. If a run that began with --init-from resumes, takes the model from
// its checkpoint instead. Throws UsageError if --init-from names another model than the run began with.
void adopt_model(Options& options, const ModelFamily& family, const std::optional<ResumePoint>& resume);

// Removes incomplete checkpoints that a kill left, and renames damaged ones to step_X.damaged, because the run will
// reach their steps again.
void clear_remains(const std::string& run_folder, const std::optional<ResumePoint>& point);

}  // namespace teon
