// GPUs that --plan-for plans for on a machine without one.
#pragma once

#include <string>
#include <vector>

#include "runtime/device.h"

namespace teon {

struct KnownGpu {
    std::string name;  // of --plan-for
    DeviceInfo device;
};
const std::vector<KnownGpu>& known_gpus();

}  // namespace teon
