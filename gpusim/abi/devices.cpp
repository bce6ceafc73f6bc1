#include "gpusim/abi/devices.h"

#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

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

// cudaDeviceProp as far as it is modelled: "Technical Specifications per Compute Capability".
struct Properties {
#define TEON_MEMBER(member, type, offset) std::type_identity_t<type> member;
    TEON_PROPERTIES(TEON_MEMBER)
#undef TEON_MEMBER
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

// Those of consumers, sm_86 and sm_89, have fewer.
int threads_of_multiprocessor() { return device().capability % 10 != 0 ? 1536 : 2048; }
int blocks_of_multiprocessor() { return device().capability % 10 != 0 ? 24 : 32; }

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
        return cpu::fail(cudaErrorInvalidDevice, "there is no device {}; there are {}", index, device_count());
    thread_device = index;
    return cpu::device_error();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
    if (!cpu::is_device(index)) return cpu::fail(cudaErrorInvalidDevice, "there is no device {}", index);
    const teon::GpuSheet& d = device();
    size_t free = 0;
    Properties p = {};  // what the model cannot do is 0: managed memory, clusters
    const cudaError_t status = cudaMemGetInfo(&free, &p.totalGlobalMem);
    std::strncpy(p.name, d.title, sizeof p.name - 1);
    p.sharedMemPerBlock = kSharedUnasked;
    p.sharedMemPerBlockOptin = d.block_shared();
    p.reservedSharedMemPerBlock = 1024;
    p.sharedMemPerMultiprocessor = p.sharedMemPerBlockOptin + p.reservedSharedMemPerBlock;
    p.memPitch = INT_MAX;
    p.totalConstMem = 65536;
    p.regsPerBlock = p.regsPerMultiprocessor = 65536;
    p.warpSize = 32;
    p.maxThreadsPerBlock = p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = INT_MAX;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.maxThreadsPerMultiProcessor = threads_of_multiprocessor();
    p.maxBlocksPerMultiProcessor = blocks_of_multiprocessor();
    p.major = d.capability / 10;
    p.minor = d.capability % 10;
    p.multiProcessorCount = d.multiprocessors;
    p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = 1;
    p.streamPrioritiesSupported = p.cooperativeLaunch = 1;
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
