// The enumerators of cuSOLVER that cpu/ knows, with their values. test/runtime/test_cuda_values.cu compares them with
// the toolkit's if nvcc compiles it.
#pragma once

// X(name, value)
#define CUSOLVER_STATUSES(X)               \
    X(CUSOLVER_STATUS_SUCCESS, 0)          \
    X(CUSOLVER_STATUS_NOT_INITIALIZED, 1)  \
    X(CUSOLVER_STATUS_ALLOC_FAILED, 2)     \
    X(CUSOLVER_STATUS_INVALID_VALUE, 3)    \
    X(CUSOLVER_STATUS_ARCH_MISMATCH, 4)    \
    X(CUSOLVER_STATUS_EXECUTION_FAILED, 6) \
    X(CUSOLVER_STATUS_INTERNAL_ERROR, 7)
#define CUSOLVER_EIG_MODES(X) X(CUSOLVER_EIG_MODE_VECTOR, 1)
#define CUBLAS_FILL_MODES(X) X(CUBLAS_FILL_MODE_LOWER, 0)
