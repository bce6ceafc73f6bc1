// How long a step of a plan takes on a GPU of plan/gpus.h: counted FLOPs and bytes at rates that are fitted to
// published measurements (docs/distributed.md has the rules).
#pragma once

#include <string>

#include "plan/gpus.h"
#include "plan/run_plan.h"

namespace teon {

struct StepTime {  // seconds of a step
    double products = 0, attention = 0, recomputation = 0, passes = 0, update = 0;
    double pcie = 0;      // for the optimizer's offloaded state
    double exchange = 0;  // that neither backward nor forward hides
    double copies = 0;    // of offloaded activations, that forward and backward do not hide
    double copies_each_way = 0;
    double total() const { return products + attention + recomputation + passes + update + pcie + exchange + copies; }
};

// About two standard deviations of the logarithm of predicted over measured, of the published steps in
// bench/measured_gpu.toml; all of them are within it (test/programs/test_plan.py).
constexpr double kStepTimeSpread = 0.13;

// Bytes/s that a rank sends: gb_per_s if it is not 0, else over NVLink up to 8 ranks, beyond them the network's, which
// each operation then crosses.
double link_rate(const GpuRates& gpu, int ranks, double gb_per_s);

// Calibrated for bf16 with flash attention; of other runs only the times over PCIe are known.
StepTime step_time(const RunPlan& plan, const GpuRates& gpu);

// The same as text, with its range.
std::string step_time_table(const RunPlan& plan, const KnownGpu& gpu);

}  // namespace teon
