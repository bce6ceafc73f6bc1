#include "gpusim/abi/devices.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/check.h"
#include "cpu/error.h"
#include "gpusim/abi/layouts.h"

namespace teon::gpusim {

namespace {

constexpr Device kDevices[] = {
    {"H200", "NVIDIA H200", 90, 132, 227 * 1024, 228 * 1024},
    {"H100", "NVIDIA H100 80GB HBM3", 90, 132, 227 * 1024, 228 * 1024},
    {"A100", "NVIDIA A100-SXM4-80GB", 80, 108, 163 * 1024, 164 * 1024},
    {"RTX4090", "NVIDIA GeForce RTX 4090", 89, 128, 99 * 1024, 100 * 1024},
};

const Device& choose() {
    const char* asked = std::getenv("CUDA_DEVICE");
    const std::string name = asked && *asked ? asked : kDevices[0].name;
    std::string known;
    for (const Device& d : kDevices) {
        if (name == d.name) {
            std::fprintf(stderr,
                         "This is a model of an %s: its kernels run as PTX on the CPU, thousands of times slower.\n",
                         d.title);
            return d;
        }
        known += (known.empty() ? "" : ", ") + std::string(d.name);
    }
    throw UsageError(fmt::format("CUDA_DEVICE is \"{}\"; it must be one of {}", name, known));
}

void put(void* structure, size_t offset, const void* value, size_t bytes) {
    std::memcpy(static_cast<char*>(structure) + offset, value, bytes);
}

}  // namespace

const Device& device() {
    static const Device& chosen = choose();
    return chosen;
}

}  // namespace teon::gpusim

using namespace teon::gpusim;
using teon::cpu::device_error;
using teon::cpu::fail;

cudaError_t cudaGetDeviceCount(int* count) {
    (void)device();
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
    const Device& d = device();
    struct {
        char name[256] = {};
        size_t totalGlobalMem = 0, sharedMemPerBlock = kSharedUnasked, sharedMemPerMultiprocessor = 0,
               sharedMemPerBlockOptin = 0;
        int regsPerBlock = 65536, warpSize = 32, maxThreadsPerBlock = 1024, major = 0, minor = 0,
            multiProcessorCount = 0;
    } p;
    std::strncpy(p.name, d.title, sizeof p.name - 1);
    size_t free = 0;
    const cudaError_t status = cudaMemGetInfo(&free, &p.totalGlobalMem);
    p.sharedMemPerMultiprocessor = d.multiprocessor_shared;
    p.sharedMemPerBlockOptin = d.block_shared;
    p.major = d.capability / 10;
    p.minor = d.capability % 10;
    p.multiProcessorCount = d.multiprocessors;
    std::memset(static_cast<void*>(properties), 0, kPropertiesBytes);
#define TEON_PUT(member, type, offset) put(properties, offset, &p.member, sizeof(type));
    TEON_PROPERTIES(TEON_PUT)
#undef TEON_PUT
    return status;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
    *version = kVersion;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = kVersion;
    return cudaSuccess;
}
// Of cuBLASLt: 13.0.0.
size_t cublasLtGetVersion() { return 130000; }

}  // extern "C"
