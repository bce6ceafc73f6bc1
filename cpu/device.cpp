// The device's properties, kernels' limits, and the profiler that is not there.
#include "cpu/device.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

#include "base/check.h"
#include "cpu/counts.h"
#include "cpu/device_models.h"
#include "cpu/error.h"
#include "cpu/include/cuda_profiler_api.h"
#include "cpu/pages.h"
#include "cpu/threads.h"

namespace teon::cpu {

namespace {

// What the test build passes for; null: the CPU, which takes what any GPU takes.
const DeviceModel* model() {
    static const DeviceModel* const chosen = kUnkind ? find_device_model() : nullptr;
    return chosen;
}
size_t block_shared() { return model() ? model()->block_shared : 227 * 1024; }

std::string processor() {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);)
        if (line.starts_with("model name"))
            if (const size_t at = line.find(": "); at != line.npos) return line.substr(at + 2);
    return "CPU";
}

std::mutex mutex;
std::map<const void*, size_t> granted;  // kernels that have asked for more dynamic shared memory

}  // namespace

cudaError_t check_launch(const void* kernel, size_t smem) {
    ++counters.launches;
    if constexpr (kUnkind) {
        if (smem <= kSharedUnasked) return cudaSuccess;
        const std::lock_guard lock(mutex);
        const auto it = granted.find(kernel);
        if (it == granted.end() || it->second < smem)
            return fail(cudaErrorInvalidValue, fmt::format("more than {} bytes of dynamic shared memory need "
                                                           "cudaFuncAttributeMaxDynamicSharedMemorySize",
                                                           kSharedUnasked));
    }
    return cudaSuccess;
}

}  // namespace teon::cpu

using namespace teon::cpu;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
    const size_t most = block_shared() - kStaticSharedBytes;
    if (value < 0 || static_cast<size_t>(value) > most)
        return fail(cudaErrorInvalidValue,
                    fmt::format("{} bytes of dynamic shared memory; a block has {}, without {} for static arrays",
                                value, most, kStaticSharedBytes));
    const std::lock_guard lock(mutex);
    granted[kernel] = static_cast<size_t>(value);
    return device_error();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
    if (!is_device(index)) return fail(cudaErrorInvalidDevice, fmt::format("there is no device {}", index));
    cudaDeviceProp p = {};
    const std::string name = model() ? model()->title : processor();
    name.copy(p.name, sizeof p.name - 1);
    p.sharedMemPerBlock = kSharedUnasked;
    p.sharedMemPerBlockOptin = block_shared();
    p.multiProcessorCount = thread_count();
    p.major = model() ? model()->capability / 10 : 0;
    p.minor = model() ? model()->capability % 10 : 0;
    *properties = p;
    size_t free = 0;
    return cudaMemGetInfo(&free, &properties->totalGlobalMem);
}

cudaError_t cudaProfilerStart() { return fail(cudaErrorUnknown, "there is no profiler for a CPU"); }
cudaError_t cudaProfilerStop() { return fail(cudaErrorUnknown, "there is no profiler for a CPU"); }
