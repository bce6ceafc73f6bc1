// The tokens of a step and the steps of a run.
#pragma once

#include "plan/run_plan.h"

namespace teon {

// Fewer steps teach a model almost nothing: the warmup alone takes some, and the plan warns.
constexpr int64_t kFewSteps = 50;

// Sets options.batch_tokens. A given number is rounded down to whole sequences, with a note. The default suits the
// device: 524288 on a GPU, on a CPU at most as many as 2e12 operations per rank train (some seconds' work). It also
// follows the data: an epoch, or the run if that is shorter, has at least 200 steps, down to one sequence (or
// --micro-batch) per rank and step. Throws UsageError unless the ranks and --micro-batch divide the step's sequences.
void plan_batch(RunPlan& plan);

// Sets steps and eval_windows. Adds a note if the steps are few or if nothing will be validated. Throws UsageError if
// the data are too short or if products of the flags overflow. Call plan_batch() first.
void plan_length(RunPlan& plan);

}  // namespace teon
