// What the whole run of a plan costs: hours, speed, and bytes on disk.
#pragma once

#include <cstdint>
#include <string>

#include "base/gpus.h"
#include "plan/run_plan.h"

namespace teon {

// Returns how many checkpoints are on disk at once, at most, and the bytes of each.
int64_t most_checkpoints(const RunPlan& plan);
int64_t checkpoint_bytes(const RunPlan& plan);

// Returns the text that ends a plan. gpu: of --plan-for, or nullptr.
std::string whole_run_table(const RunPlan& plan, const GpuModel* gpu);

}  // namespace teon
