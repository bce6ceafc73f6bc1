// The devices that the model can be, and the layouts of NVIDIA's structures that cross the border to a program.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/include/cuda_runtime.h"

namespace teon::gpusim {

// "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide.
struct Device {
    const char* name;   // for CUDA_DEVICE
    const char* title;  // as it calls itself
    int capability;     // 90: 9.0
    int multiprocessors;
    size_t block_shared, multiprocessor_shared;  // bytes; a block's with the attribute that asks for more
};

// The one that CUDA_DEVICE names; H200 unless it is set. Says on stderr, once, that a model runs. Throws UsageError.
const Device& device();

inline constexpr size_t kSharedUnasked = 48 * 1024;
inline constexpr int kVersion = 13000;  // of the driver and of the runtime

// cudaDeviceProp: its size and where a member is. test/gpusim/test_layouts.cu compares all of these with the toolkit's.
#define TEON_PROPERTIES(X)                     \
    X(name, char[256], 0)                      \
    X(totalGlobalMem, size_t, 288)             \
    X(sharedMemPerBlock, size_t, 296)          \
    X(regsPerBlock, int, 304)                  \
    X(warpSize, int, 308)                      \
    X(maxThreadsPerBlock, int, 320)            \
    X(major, int, 360)                         \
    X(minor, int, 364)                         \
    X(multiProcessorCount, int, 384)           \
    X(sharedMemPerMultiprocessor, size_t, 624) \
    X(sharedMemPerBlockOptin, size_t, 672)
inline constexpr size_t kPropertiesBytes = 1008;

#define TEON_FUNCTION_ATTRIBUTES(X) \
    X(sharedSizeBytes, size_t, 0)   \
    X(localSizeBytes, size_t, 16)   \
    X(maxThreadsPerBlock, int, 24)  \
    X(ptxVersion, int, 32)          \
    X(binaryVersion, int, 36)       \
    X(maxDynamicSharedSizeBytes, int, 44)
inline constexpr size_t kFunctionAttributesBytes = 144;

// cudaLaunchConfig_t and cudaLaunchAttribute.
struct LaunchAttribute {
    int id;
    alignas(8) unsigned char value[64];
};
struct LaunchConfiguration {
    dim3 grid, block;
    size_t dynamic_shared;
    cudaStream_t stream;
    const LaunchAttribute* attributes;
    unsigned count;
};
inline constexpr int kProgrammaticStreamSerialization = 6;

}  // namespace teon::gpusim
