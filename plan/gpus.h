// The GPUs of --plan-for, which need not be present.
#pragma once

#include <string>
#include <vector>

#include "base/gpus.h"
#include "runtime/device.h"

namespace teon {

struct KnownGpu {
    std::string name;  // of --plan-for
    DeviceInfo device;
    GpuRates rates;
    double spread;  // the range of expected times, as a logarithm
};
const std::vector<KnownGpu>& known_gpus();  // the rows of base/gpus.h

}  // namespace teon
