// The memory of a run: bytes of the process by category, and the micro-batch and recompute policy that fit beside them.
#pragma once

#include <cstdint>
#include <string>

#include "base/gpus.h"
#include "plan/run_plan.h"
#include "runtime/cuda/device.h"

namespace teon {

// Plans for `bytes` of device memory. Of the shardings that --shard auto permits and that fit, takes the first whose
// expected step on `gpu` is within 2% of the shortest, or the first if gpu is nullptr or no time is expected. Throws
// UsageError that names the memory needed by category and the flags that lower it.
void plan_memory(RunPlan& plan, int64_t bytes, const GpuRates* gpu);

// Throws UsageError if the processes on this machine would pin more of the host's memory than is available. All pin
// offloaded data, and rank 0 also the copy that becomes a checkpoint.
void check_host_memory(const RunPlan& plan, int local_ranks, int64_t available_bytes);

// Returns the bytes of the device that a run may use: a share of the free memory or, with several ranks, of the total,
// because all ranks must make the same plan. Local ranks on a CPU divide their machine's memory.
int64_t usable_bytes(const DeviceInfo& device, int ranks, int local_ranks);

int64_t memory_bytes(const RunPlan& plan);  // of all categories on the device

// Returns advice for a run that does not fit: "lower --seq-len, give --optimizer muon (half of AdamW's state) or use a
// smaller model".
std::string memory_advice(const RunPlan& plan);

}  // namespace teon
