#include "runtime/cuda/known_gpus.h"

#include "base/text.h"

namespace teon {

namespace {

std::vector<KnownGpu> from_rows() {
    std::vector<KnownGpu> gpus;
    for (const GpuModel& gpu : kGpus) {
        const GpuSheet& s = gpu.sheet;
        const size_t memory = static_cast<size_t>(s.memory_mib) << 20;
        const DeviceInfo device = {s.title, true,   s.multiprocessors, s.capability, s.block_shared(),
                                   memory,  memory, s.tflops * 1e12};
        gpus.push_back({lower_case(short_name(s)), device, gpu.rates, gpu.spread});
    }
    return gpus;
}

}  // namespace

const std::vector<KnownGpu>& known_gpus() {
    static const std::vector<KnownGpu> gpus = from_rows();
    return gpus;
}

const KnownGpu* known_gpu(std::string_view name_or_device) {
    for (const KnownGpu& gpu : known_gpus())
        if (gpu.name == name_or_device || gpu.device.name == name_or_device) return &gpu;
    return nullptr;
}

}  // namespace teon
