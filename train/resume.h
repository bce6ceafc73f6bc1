// Continuing a run from its newest whole checkpoint.
#pragma once

#include <optional>

#include "checkpoint/checkpoint.h"
#include "plan/options.h"
#include "runtime/context.h"

namespace teon {

struct ResumePoint {
    FoundCheckpoint found;
    TrainingState state;
};

// nullopt if the run's folder holds no checkpoint at all. Throws Error naming each fault if it holds some but none is
// whole.
std::optional<ResumePoint> find_resume_point(const std::string& run_folder);

// Rank 0's checkpoint on every rank: one of the same step and manifest, which must be whole. Throws Error naming the
// rank and the folder otherwise.
std::optional<ResumePoint> resume_point_of_rank_0(const std::string& run_folder, std::optional<ResumePoint> own,
                                                  Context& context);

// Sets options.adopted to the model of --init-from. A run that began with --init-from and resumes takes the model of
// `checkpoint` instead (a folder; empty: the run does not resume); `saved` is its state, where that is known. Throws
// UsageError if --init-from names another model than the run began with.
void adopt_model(Options& options, const ModelFamily& family, const std::string& checkpoint,
                 const TrainingState* saved);

// The same for a rank that resumes and does not know yet where from: the newest checkpoint whose model can be read has
// that of all.
void adopt_newest_model(Options& options, const ModelFamily& family);

// Removes incomplete checkpoints that a kill left, and renames damaged ones to step_X.damaged, because the run will
// reach their steps again.
void clear_remains(const std::string& run_folder, const std::optional<ResumePoint>& point);

}  // namespace teon
