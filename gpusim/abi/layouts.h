// The layouts of NVIDIA's structures (CUDA 13) that a program exchanges with the model, limited to the members in use.
// Compiled by nvcc, test/runtime/test_cuda_values.cu compares them with the toolkit's.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace teon::gpusim {

// X(member, type, offset) of cudaDeviceProp. All other bytes are kUnmodelled, so that nobody takes them for a zero.
#define TEON_PROPERTIES(X)                     \
    X(name, char[256], 0)                      \
    X(totalGlobalMem, size_t, 288)             \
    X(sharedMemPerBlock, size_t, 296)          \
    X(regsPerBlock, int, 304)                  \
    X(warpSize, int, 308)                      \
    X(memPitch, size_t, 312)                   \
    X(maxThreadsPerBlock, int, 320)            \
    X(maxThreadsDim, int[3], 324)              \
    X(maxGridSize, int[3], 336)                \
    X(totalConstMem, size_t, 352)              \
    X(major, int, 360)                         \
    X(minor, int, 364)                         \
    X(multiProcessorCount, int, 384)           \
    X(integrated, int, 388)                    \
    X(canMapHostMemory, int, 392)              \
    X(concurrentKernels, int, 560)             \
    X(unifiedAddressing, int, 588)             \
    X(maxThreadsPerMultiProcessor, int, 604)   \
    X(streamPrioritiesSupported, int, 608)     \
    X(sharedMemPerMultiprocessor, size_t, 624) \
    X(regsPerMultiprocessor, int, 632)         \
    X(managedMemory, int, 636)                 \
    X(cooperativeLaunch, int, 668)             \
    X(sharedMemPerBlockOptin, size_t, 672)     \
    X(maxBlocksPerMultiProcessor, int, 688)    \
    X(reservedSharedMemPerBlock, size_t, 696)  \
    X(clusterLaunch, int, 748)
inline constexpr size_t kPropertiesBytes = 1008;
inline constexpr unsigned char kUnmodelled = 0xff;

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
// cudaLaunchAttributeID.
inline constexpr int kCooperative = 2;
inline constexpr int kClusterDimension = 4;
inline constexpr int kProgrammaticStreamSerialization = 6;
inline constexpr int kPriority = 8;

// CUtensorMapDataType and CUtensorMapSwizzle.
inline constexpr int kTensorMapF16 = 6;
inline constexpr int kTensorMapBf16 = 9;
inline constexpr int kTensorMapSwizzle128 = 3;

}  // namespace teon::gpusim
