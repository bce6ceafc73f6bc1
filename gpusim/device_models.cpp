#include "gpusim/device_models.h"

#include <cstdlib>
#include <string>

#include "base/check.h"

namespace teon::gpusim {

namespace {

constexpr DeviceModel kModels[] = {
    {"H200", "NVIDIA H200", 90, 132, 227 * 1024, 228 * 1024},
    {"H100", "NVIDIA H100 80GB HBM3", 90, 132, 227 * 1024, 228 * 1024},
    {"A100", "NVIDIA A100-SXM4-80GB", 80, 108, 163 * 1024, 164 * 1024},
    {"RTX4090", "NVIDIA GeForce RTX 4090", 89, 128, 99 * 1024, 100 * 1024},
};

}  // namespace

const DeviceModel& find_device_model() {
    const char* asked = std::getenv("CUDA_DEVICE");
    if (!asked || !*asked) return kModels[0];
    std::string known;
    for (const DeviceModel& m : kModels) {
        if (asked == std::string(m.name)) return m;
        known += (known.empty() ? "" : ", ") + std::string(m.name);
    }
    throw UsageError(fmt::format("CUDA_DEVICE is \"{}\"; it must be one of {}", asked, known));
}

}  // namespace teon::gpusim
