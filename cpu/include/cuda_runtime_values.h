// The enumerators of the CUDA runtime that cpu/ knows, with their values. test/runtime/test_cuda_values.cu compares
// them with the toolkit's if nvcc compiles it.
#pragma once

#define CUDA_ERRORS(X)                        \
    X(cudaSuccess, 0)                         \
    X(cudaErrorInvalidValue, 1)               \
    X(cudaErrorMemoryAllocation, 2)           \
    X(cudaErrorInvalidConfiguration, 9)       \
    X(cudaErrorInvalidMemcpyDirection, 21)    \
    X(cudaErrorInvalidDeviceFunction, 98)     \
    X(cudaErrorNoDevice, 100)                 \
    X(cudaErrorInvalidDevice, 101)            \
    X(cudaErrorNoKernelImageForDevice, 209)   \
    X(cudaErrorInvalidPtx, 218)               \
    X(cudaErrorInvalidResourceHandle, 400)    \
    X(cudaErrorNotReady, 600)                 \
    X(cudaErrorIllegalAddress, 700)           \
    X(cudaErrorLaunchOutOfResources, 701)     \
    X(cudaErrorLaunchFailure, 719)            \
    X(cudaErrorNotPermitted, 800)             \
    X(cudaErrorStreamCaptureUnsupported, 900) \
    X(cudaErrorStreamCaptureInvalidated, 901) \
    X(cudaErrorStreamCaptureUnmatched, 903)   \
    X(cudaErrorStreamCaptureUnjoined, 904)    \
    X(cudaErrorStreamCaptureIsolation, 905)   \
    X(cudaErrorStreamCaptureImplicit, 906)    \
    X(cudaErrorCapturedEvent, 907)            \
    X(cudaErrorStreamCaptureWrongThread, 908) \
    X(cudaErrorUnknown, 999)
#define CUDA_COPY_KINDS(X)         \
    X(cudaMemcpyHostToHost, 0)     \
    X(cudaMemcpyHostToDevice, 1)   \
    X(cudaMemcpyDeviceToHost, 2)   \
    X(cudaMemcpyDeviceToDevice, 3) \
    X(cudaMemcpyDefault, 4)
#define CUDA_FUNCTION_ATTRIBUTES(X)                      \
    X(cudaFuncAttributeMaxDynamicSharedMemorySize, 8)    \
    X(cudaFuncAttributePreferredSharedMemoryCarveout, 9) \
    X(cudaFuncAttributeNonPortableClusterSizeAllowed, 14)
#define CUDA_CAPTURE_STATES(X)          \
    X(cudaStreamCaptureStatusNone, 0)   \
    X(cudaStreamCaptureStatusActive, 1) \
    X(cudaStreamCaptureStatusInvalidated, 2)
#define CUDA_CAPTURE_MODES(X)              \
    X(cudaStreamCaptureModeGlobal, 0)      \
    X(cudaStreamCaptureModeThreadLocal, 1) \
    X(cudaStreamCaptureModeRelaxed, 2)
#define CUDA_FLAGS(X)            \
    X(cudaStreamDefault, 0)      \
    X(cudaStreamNonBlocking, 1)  \
    X(cudaEventDefault, 0)       \
    X(cudaEventBlockingSync, 1)  \
    X(cudaEventDisableTiming, 2) \
    X(cudaHostAllocDefault, 0)   \
    X(cudaHostAllocMapped, 2)
