// The GPUs of --plan-for, which need not be present.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/gpus.h"
#include "runtime/cuda/device.h"

namespace teon {

struct KnownGpu {
    std::string name;  // of --plan-for
    DeviceInfo device;
    GpuRates rates;
    double spread;  // the range of expected times, as a logarithm
};
const std::vector<KnownGpu>& known_gpus();  // the rows of base/gpus.h
// Returns the GPU of a value of --plan-for, or the one that reports this device name; nullptr if it is unknown.
const KnownGpu* known_gpu(std::string_view name_or_device);

}  // namespace teon
