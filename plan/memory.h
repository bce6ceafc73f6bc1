// The memory of a run: what the process holds by category, and the micro-batch and recompute policy that fit beside it.
#pragma once

#include <cstdint>
#include <string>

#include "plan/run_plan.h"
#include "runtime/device.h"

namespace teon {

// Plans for `bytes` of device memory. one_pass_multiprocessors: DecoderRun's. Throws UsageError that says what
// is needed, for what, and which flags make it less.
void plan_memory(RunPlan& plan, int64_t bytes, int one_pass_multiprocessors = 0);

// Bytes of the device that a run may use. Several ranks must make the same plan, so theirs is a share of the total, not
// of what happens to be free; local ranks on a CPU share their machine's memory.
int64_t usable_bytes(const DeviceInfo& device, int ranks, int local_ranks);

int64_t memory_bytes(const RunPlan& plan);  // of all categories on the device

// Which flags would make a run smaller that does not fit: "lower --seq-len, give --optimizer muon (half of AdamW's
// state) or use a smaller model".
std::string memory_advice(const RunPlan& plan);

}  // namespace teon
