#include "gpusim/abi/devices.h"

#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/check.h"
#include "cpu/error.h"
#include "cpu/hardware.h"
#include "gpusim/abi/layouts.h"
#include "gpusim/host/environment.h"

namespace teon::gpusim {

namespace {

constexpr int kDevicesOfMachine = 8;

// Reads CUDA_VISIBLE_DEVICES like the CUDA driver: the list ends at the first entry that is not the number of a device.
int count_visible() {
    const char* at = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!at) return 1;
    int count = 0;
    for (const char* const end = at + std::char_traits<char>::length(at); count < kDevicesOfMachine; ++at) {
        int index = -1;
        const auto [rest, error] = std::from_chars(at, end, index);
        if (error != std::errc() || index < 0 || index >= kDevicesOfMachine) break;
        ++count;
        at = rest;
        if (*at != ',') break;
    }
    return count;
}

int device_count() {
    static const int count = count_visible();
    return count;
}

thread_local int thread_device = 0;

// cudaDeviceProp as far as it is modelled: "Technical Specifications per Compute Capability". What the model cannot do
// is 0: managed memory, clusters.
struct Properties {
    char name[256] = {};
    size_t totalGlobalMem = 0;
    size_t sharedMemPerBlock = kSharedUnasked;
    size_t sharedMemPerMultiprocessor = 0;
    size_t sharedMemPerBlockOptin = 0;
    size_t reservedSharedMemPerBlock = 1024;
    size_t memPitch = INT_MAX;
    size_t totalConstMem = 65536;
    int regsPerBlock = 65536;
    int regsPerMultiprocessor = 65536;
    int warpSize = 32;
    int maxThreadsPerBlock = 1024;
    int maxThreadsDim[3] = {1024, 1024, 64};
    int maxGridSize[3] = {INT_MAX, 65535, 65535};
    int maxThreadsPerMultiProcessor = 0;
    int maxBlocksPerMultiProcessor = 0;
    int major = 0;
    int minor = 0;
    int multiProcessorCount = 0;
    int integrated = 0;
    int canMapHostMemory = 1;
    int concurrentKernels = 1;
    int unifiedAddressing = 1;
    int streamPrioritiesSupported = 1;
    int managedMemory = 0;
    int cooperativeLaunch = 1;
    int clusterLaunch = 0;
};

void put(void* structure, size_t offset, const void* value, size_t bytes) {
    std::memcpy(static_cast<char*>(structure) + offset, value, bytes);
}

}  // namespace

const GpuSheet& device() {
    static const GpuSheet& chosen = []() -> const GpuSheet& {
        const GpuSheet& d = from_environment(find_device_model);
        std::fprintf(stderr,
                     "This is a model of an %s: its kernels run as PTX on the CPU, thousands of times slower.\n",
                     d.title);
        return d;
    }();
    return chosen;
}

}  // namespace teon::gpusim

namespace teon::cpu {

int current_device() { return gpusim::thread_device; }
bool is_device(int index) { return index >= 0 && index < gpusim::device_count(); }
bool multiplies_fp8() { return gpusim::device().capability >= 89; }

}  // namespace teon::cpu

using namespace teon::gpusim;
namespace cpu = teon::cpu;

cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count();
    return *count > 0 ? cudaSuccess : cpu::fail(cudaErrorNoDevice, "CUDA_VISIBLE_DEVICES names no device");
}

cudaError_t cudaGetDevice(int* index) {
    *index = thread_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
    if (!cpu::is_device(index))
        return cpu::fail(cudaErrorInvalidDevice,
                         fmt::format("there is no device {}; there are {}", index, device_count()));
    thread_device = index;
    return cpu::device_error();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
    if (!cpu::is_device(index)) return cpu::fail(cudaErrorInvalidDevice, fmt::format("there is no device {}", index));
    const teon::GpuSheet& d = device();
    Properties p;
    std::strncpy(p.name, d.title, sizeof p.name - 1);
    size_t free = 0;
    const cudaError_t status = cudaMemGetInfo(&free, &p.totalGlobalMem);
    p.sharedMemPerBlockOptin = d.block_shared();
    p.sharedMemPerMultiprocessor = p.sharedMemPerBlockOptin + p.reservedSharedMemPerBlock;
    const bool is_consumer = d.capability % 10 != 0;  // sm_86, sm_89
    p.maxThreadsPerMultiProcessor = is_consumer ? 1536 : 2048;
    p.maxBlocksPerMultiProcessor = is_consumer ? 24 : 32;
    p.major = d.capability / 10;
    p.minor = d.capability % 10;
    p.multiProcessorCount = d.multiprocessors;
    std::memset(static_cast<void*>(properties), kUnmodelled, kPropertiesBytes);
#define TEON_PUT(member, type, offset) put(properties, offset, &p.member, sizeof(type));
    TEON_PROPERTIES(TEON_PUT)
#undef TEON_PUT
    return status;
}

extern "C" {

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) {
    *version = kVersion;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = kVersion;
    return cudaSuccess;
}
// 13.0.0
size_t cublasLtGetVersion() { return 130000; }

}  // extern "C"
