// Predicts the time of a plan's step on a GPU of base/gpus.h, from counted FLOPs and bytes and from rates
// that are fitted to published measurements (docs/distributed.md has the rules).
#pragma once

#include <string>

#include "base/gpus.h"
#include "plan/run_plan.h"

namespace teon {

struct StepTime {  // seconds of a step
    double products = 0, attention = 0, recomputation = 0, passes = 0, update = 0;
    double pcie = 0;      // for the optimizer's offloaded state
    double exchange = 0;  // the part that neither the backward nor the forward pass hides
    double copies = 0;    // of offloaded activations: the part that the two passes do not hide
    double copies_each_way = 0;
    double total() const { return products + attention + recomputation + passes + update + pcie + exchange + copies; }
};

// Returns the bytes/s that a rank sends: gb_per_s (in GB/s) if it is not 0, else NVLink's rate for up to 8 ranks. With
// more ranks each operation crosses the network, and the rate is the network's.
double link_rate(const GpuRates& gpu, int ranks, double gb_per_s);

// Calibrated for bf16 with flash attention. For other runs only the times over PCIe are valid.
StepTime step_time(const RunPlan& plan, const GpuRates& gpu);

// Whether step_time() is calibrated for the plan's type and attention.
bool predicts_step_time(const RunPlan& plan);

// Returns the tokens/s of all ranks at which MFU (model FLOPs utilization) is 100%, for devices of this many FLOP/s; 0
// if that is 0. docs/distributed.md says what is counted.
double peak_tokens_per_s(const RunPlan& plan, double device_flops);

// Returns step_time() as text, with its range.
std::string step_time_table(const RunPlan& plan, const GpuModel& gpu);

}  // namespace teon
