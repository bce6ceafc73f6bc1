#include "plan/gpus.h"

namespace teon {

namespace {

// Multiprocessors, compute capability and shared memory of a block from NVIDIA's tuning guides; memory as nvidia-smi
// shows it.
KnownGpu gpu(const char* name, const char* full_name, int multiprocessors, int capability, size_t shared_kib,
             size_t memory_mib, double tflops, const GpuRates& rates) {
    const size_t memory = memory_mib << 20;
    return {
        name, {full_name, true, multiprocessors, capability, shared_kib << 10, memory, memory, tflops * 1e12}, rates};
}

}  // namespace

const std::vector<KnownGpu>& known_gpus() {
    static const std::vector<KnownGpu> all = {gpu("h100", "NVIDIA H100 80GB HBM3", 132, 90, 227, 81559, 989, kH100),
                                              gpu("h200", "NVIDIA H200", 132, 90, 227, 143771, 989, kH200),
                                              gpu("a100", "NVIDIA A100-SXM4-80GB", 108, 80, 163, 81920, 312, kA100)};
    return all;
}

}  // namespace teon
