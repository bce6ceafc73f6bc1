// The CPU as the only device: its properties, the limits of kernels, and the missing profiler.
#include "cpu/launch.h"

#include <fstream>
#include <string>

#include "base/check.h"
#include "base/text.h"
#include "cpu/address_space.h"
#include "cpu/error.h"
#include "cpu/hardware.h"
#include "cpu/include/cuda_profiler_api.h"
#include "cpu/threads.h"

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

using namespace teon::cpu;

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    using teon::bytes_text;
    const std::optional<int64_t> bytes_left = address_space_left();
    if (bytes_left && *bytes_left < address_space_of_libraries())
        return fail(cudaErrorMemoryAllocation,
                    "the limit of address space (ulimit -v) leaves {}, but the CPU's libraries and threads "
                    "need {} beside the model; raise it",
                    bytes_text(static_cast<double>(*bytes_left)),
                    bytes_text(static_cast<double>(address_space_of_libraries())));
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* index) {
    *index = current_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
    if (is_device(index)) return device_error();
    return fail(cudaErrorInvalidDevice, "there is no device {}; there are 1", index);
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
    constexpr size_t kMost = kBlockShared - kStaticSharedBytes;
    if (value < 0 || static_cast<size_t>(value) > kMost)
        return fail(cudaErrorInvalidValue,
                    "{} bytes of dynamic shared memory; a block has {}, without {} for static arrays", value, kMost,
                    kStaticSharedBytes);
    return device_error();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
    if (!is_device(index)) return fail(cudaErrorInvalidDevice, "there is no device {}", index);
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
