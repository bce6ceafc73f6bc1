// What a run reads: its data in the order of training or of evaluation, and the prompt of its samples.
#pragma once

#include "data/loader.h"
#include "plan/run_plan.h"

namespace teon {

LoaderOptions loader_options(const RunPlan& plan, bool training, int rank);

// Throws what run_training() would throw about data or prompt. Needs no device.
void check_inputs(const RunPlan& plan);

}  // namespace teon
