// The GPUs of --plan-for, which need not be present.
#pragma once

#include <string>
#include <vector>

#include "plan/gpu_rates.h"
#include "runtime/device.h"

namespace teon {

// About two standard deviations of log(predicted / measured) over the published steps in bench/published_steps.toml,
// all of which are within it (test/programs/test_plan.py).
constexpr double kStepTimeSpread = 0.13;
// For GPUs whose rates follow from their data sheets alone; no published step of theirs was compared.
constexpr double kDataSheetSpread = 0.4;

struct KnownGpu {
    std::string name;  // of --plan-for
    DeviceInfo device;
    GpuRates rates;
    double spread;  // the range of expected times, as a logarithm
};
const std::vector<KnownGpu>& known_gpus();

}  // namespace teon
