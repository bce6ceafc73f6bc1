// GPUs that --plan-for plans for on a machine without one.
#pragma once

#include <string>
#include <vector>

#include "plan/gpu_rates.h"
#include "runtime/device.h"

namespace teon {

struct KnownGpu {
    std::string name;  // of --plan-for
    DeviceInfo device;
    GpuRates rates;
};
const std::vector<KnownGpu>& known_gpus();

}  // namespace teon
