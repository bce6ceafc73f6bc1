// The device's properties, the limits of kernels, and the missing profiler.
#include "cpu/device.h"

#include <fstream>
#include <string>

#include "base/check.h"
#include "cpu/devices.h"
#include "cpu/error.h"
#include "cpu/include/cuda_profiler_api.h"
#include "cpu/pages.h"
#include "cpu/threads.h"

namespace teon::cpu {

namespace {

constexpr size_t kBlockShared = 227 * 1024;  // no GPU has more

std::string processor() {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);)
        if (line.starts_with("model name"))
            if (const size_t at = line.find(": "); at != line.npos) return line.substr(at + 2);
    return "CPU";
}

}  // namespace

bool multiplies_fp8() { return true; }

}  // namespace teon::cpu

using namespace teon::cpu;

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
    constexpr size_t kMost = kBlockShared - kStaticSharedBytes;
    if (value < 0 || static_cast<size_t>(value) > kMost)
        return fail(cudaErrorInvalidValue,
                    fmt::format("{} bytes of dynamic shared memory; a block has {}, without {} for static arrays",
                                value, kMost, kStaticSharedBytes));
    return device_error();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
    if (!is_device(index)) return fail(cudaErrorInvalidDevice, fmt::format("there is no device {}", index));
    cudaDeviceProp p = {};
    processor().copy(p.name, sizeof p.name - 1);
    p.sharedMemPerBlock = 48 * 1024;
    p.sharedMemPerBlockOptin = kBlockShared;
    p.multiProcessorCount = thread_count();
    *properties = p;
    size_t free = 0;
    return cudaMemGetInfo(&free, &properties->totalGlobalMem);
}

cudaError_t cudaProfilerStart() { return fail(cudaErrorUnknown, "there is no profiler for a CPU"); }
cudaError_t cudaProfilerStop() { return fail(cudaErrorUnknown, "there is no profiler for a CPU"); }
