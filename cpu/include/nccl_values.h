// The enumerators of NCCL that cpu/ knows, with their values. test/runtime/test_cuda_values.cu compares them with
// NCCL's own if nvcc compiles it.
#pragma once

// X(name, value, message)
#define NCCL_RESULTS(X)                                           \
    X(ncclSuccess, 0, "no error")                                 \
    X(ncclUnhandledCudaError, 1, "a call to CUDA failed")         \
    X(ncclSystemError, 2, "a call to the system failed")          \
    X(ncclInternalError, 3, "internal error")                     \
    X(ncclInvalidArgument, 4, "an argument has an invalid value") \
    X(ncclInvalidUsage, 5, "NCCL was used wrongly")               \
    X(ncclRemoteError, 6, "another rank has failed or exited")    \
    X(ncclInProgress, 7, "an operation is in progress")
// X(name, value)
#define NCCL_TYPES(X) \
    X(ncclUint8, 1)   \
    X(ncclFloat16, 6) \
    X(ncclFloat32, 7) \
    X(ncclBfloat16, 9)
#define NCCL_OPERATORS(X) X(ncclSum, 0)
