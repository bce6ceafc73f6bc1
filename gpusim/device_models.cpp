#include "gpusim/device_models.h"

#include <cstdlib>
#include <string>

#include "base/check.h"

namespace teon::gpusim {

namespace {

constexpr int kNewestCapability = 90;  // whose instructions the interpreter knows

}  // namespace

const GpuSheet& find_device_model() {
    const char* value = std::getenv("CUDA_DEVICE");
    const std::string name = value && *value ? value : "H200";
    std::string names;
    for (const GpuModel& gpu : kGpus) {
        if (gpu.sheet.capability > kNewestCapability) continue;
        if (name == short_name(gpu.sheet)) return gpu.sheet;
        names += (names.empty() ? "" : ", ") + short_name(gpu.sheet);
    }
    throw UsageError(fmt::format("CUDA_DEVICE is \"{}\"; it must be one of {}", name, names));
}

}  // namespace teon::gpusim
