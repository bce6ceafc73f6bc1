// The GPUs of --plan-for, which need not be present.
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
