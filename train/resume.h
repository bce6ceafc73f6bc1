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

// Sets options.adopted: the model of --init-from, or of a run that goes on from `checkpoint` (a folder; empty: it does
// not) and began so, that checkpoint's. `saved` is the checkpoint's state, where it is known: throws UsageError if
// --init-from is given and names another model than the run began with.
void adopt_model(Options& options, const ModelFamily& family, const std::string& checkpoint,
                 const TrainingState* saved);

// What a run that resumes must have in common with the one that was saved: options, model, resolved micro-batch and
// steps, data.
nlohmann::json run_json(const ModelFamily& family, const Setup& setup);
// All that identifies the experiment that a run is, but its seed: runs of which this is equal may be compared as seeds.
// It names no files: data and weights are known by their content.
nlohmann::json experiment_json(const ModelFamily& family, const Setup& setup);
// Throws UsageError that lists what differs. The validation data may, and the length where the learning rate so far does
// not depend on it: returns a list of {"step", "event", "reason"}, those of earlier resumes first.
nlohmann::json check_unchanged(const ModelFamily& family, const TrainingState& saved, const Setup& setup);

// Removes what a kill left half written, and renames checkpoints that were passed over to step_X.damaged: the run will
// come to their steps again.
void clear_remains(const std::string& run_folder, const std::optional<ResumePoint>& point);

}  // namespace teon
