// The memory of a run: bytes of the process by category, and the micro-batch and recompute policy that fit beside them.
#pragma once

#include <cstdint>
#include <string>

#include "plan/run_plan.h"
#include "runtime/device.h"

namespace teon {

// Plans for `bytes` of device memory. Throws UsageError that names the memory
// needed by category and the flags that lower it.
void plan_memory(RunPlan& plan, int64_t bytes);

// Returns the bytes of the device that a run may use: a share of the free memory or, with several ranks, of the total,
// because all ranks must make the same plan. Local ranks on a CPU divide their machine's memory.
int64_t usable_bytes(const DeviceInfo& device, int ranks, int local_ranks);

int64_t memory_bytes(const RunPlan& plan);  // of all categories on the device

// Returns advice for a run that does not fit: "lower --seq-len, give --optimizer muon (half of AdamW's state) or use a
// smaller model".
std::string memory_advice(const RunPlan& plan);

}  // namespace teon
