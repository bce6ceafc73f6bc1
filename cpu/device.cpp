// Devices, kernels' limits, and the profiler that is not there.
#include "cpu/device.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

#include "base/check.h"
#include "cpu/counts.h"
#include "cpu/error.h"
#include "cpu/include/cuda_profiler_api.h"
#include "cpu/pages.h"
#include "cpu/threads.h"

namespace teon::cpu {

namespace {

// What a device grants, from the table "Technical Specifications per Compute Capability" of the CUDA C++ Programming
// Guide. The CPU takes what any of them takes.
struct Limits {
    const char* name;   // for CUDA_DEVICE
    const char* title;  // as the device calls itself; none: the CPU's own
    int major, minor;
    size_t shared_optin;  // bytes of shared memory per block, with the attribute
};
constexpr size_t kSharedUnasked = 48 * 1024;
constexpr Limits kDevices[] = {{"CPU", nullptr, 0, 0, 227 * 1024},
                               {"H200", "NVIDIA H200", 9, 0, 227 * 1024},
                               {"A100", "NVIDIA A100-SXM4-80GB", 8, 0, 163 * 1024},
                               {"RTX", "NVIDIA GeForce RTX 4090", 8, 9, 99 * 1024}};

const Limits& device() {
    static const Limits& chosen = []() -> const Limits& {
        const char* name = kUnkind ? std::getenv("CUDA_DEVICE") : nullptr;
        if (!name || !*name) return kDevices[0];
        for (const Limits& limits : kDevices)
            if (name == std::string(limits.name)) return limits;
        throw Error(fmt::format("CUDA_DEVICE is \"{}\"; it must be CPU, H200, A100 or RTX", name));
    }();
    return chosen;
}

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
    const size_t most = device().shared_optin - kStaticSharedBytes;
    if (value < 0 || static_cast<size_t>(value) > most)
        return fail(cudaErrorInvalidValue,
                    fmt::format("{} bytes of dynamic shared memory; a block has {}, without {} for static arrays",
                                value, most, kStaticSharedBytes));
    const std::lock_guard lock(mutex);
    granted[kernel] = static_cast<size_t>(value);
    return device_error();
}

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* index) {
    *index = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
    if (index != 0) return fail(cudaErrorInvalidDevice, "there is device 0 only");
    return device_error();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
    if (index != 0) return fail(cudaErrorInvalidDevice, "there is device 0 only");
    const Limits& limits = device();
    cudaDeviceProp p = {};
    const std::string name = limits.title ? limits.title : processor();
    name.copy(p.name, sizeof p.name - 1);
    p.sharedMemPerBlock = kSharedUnasked;
    p.sharedMemPerBlockOptin = limits.shared_optin;
    p.multiProcessorCount = thread_count();
    p.major = limits.major;
    p.minor = limits.minor;
    *properties = p;
    size_t free = 0;
    return cudaMemGetInfo(&free, &properties->totalGlobalMem);
}

cudaError_t cudaProfilerStart() { return fail(cudaErrorUnknown, "there is no profiler for a CPU"); }
cudaError_t cudaProfilerStop() { return fail(cudaErrorUnknown, "there is no profiler for a CPU"); }
