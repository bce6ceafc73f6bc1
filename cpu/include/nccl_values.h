// The enumerators of NCCL that cpu/ knows, with their values. test/runtime/test_cuda_values.cu compares them with NCCL's own
// where nvcc compiles it.
#pragma once

#define NCCL_RESULTS(X)          \
    X(ncclSuccess, 0)            \
    X(ncclUnhandledCudaError, 1) \
    X(ncclSystemError, 2)        \
    X(ncclInternalError, 3)      \
    X(ncclInvalidArgument, 4)    \
    X(ncclInvalidUsage, 5)       \
    X(ncclRemoteError, 6)        \
    X(ncclInProgress, 7)
#define NCCL_TYPES(X) \
    X(ncclUint8, 1)   \
    X(ncclFloat16, 6) \
    X(ncclFloat32, 7) \
    X(ncclBfloat16, 9)
#define NCCL_OPERATORS(X) X(ncclSum, 0)
