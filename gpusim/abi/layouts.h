// The layouts of NVIDIA's structures (CUDA 13) that a program exchanges with the model, limited to the members in use.
// Compiled by nvcc, test/runtime/test_cuda_values.cu compares them with the toolkit's.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace teon::gpusim {

// X(member, type, offset) of cudaDeviceProp.
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

// Likewise for cudaFuncAttributes.
#define TEON_FUNCTION_ATTRIBUTES(X) \
    X(sharedSizeBytes, size_t, 0)   \
    X(localSizeBytes, size_t, 16)   \
    X(maxThreadsPerBlock, int, 24)  \
    X(ptxVersion, int, 32)          \
    X(binaryVersion, int, 36)       \
    X(maxDynamicSharedSizeBytes, int, 44)
inline constexpr size_t kFunctionAttributesBytes = 144;

// cudaLaunchAttribute and cudaLaunchConfig_t.
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

// CUtensorMapDataType and CUtensorMapSwizzle.
inline constexpr int kTensorMapF16 = 6, kTensorMapBf16 = 9, kTensorMapSwizzle128 = 3;

}  // namespace teon::gpusim
