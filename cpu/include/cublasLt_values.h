// The enumerators of cuBLASLt that cpu/ knows, with their values. test/runtime/test_cuda_values.cu compares them with
// the toolkit's if nvcc compiles it.
#pragma once

// X(name, value, message)
#define CUBLAS_STATUSES(X)                                             \
    X(CUBLAS_STATUS_SUCCESS, 0, "success")                             \
    X(CUBLAS_STATUS_NOT_INITIALIZED, 1, "not initialized")             \
    X(CUBLAS_STATUS_ALLOC_FAILED, 3, "out of memory")                  \
    X(CUBLAS_STATUS_INVALID_VALUE, 7, "invalid argument")              \
    X(CUBLAS_STATUS_EXECUTION_FAILED, 13, "the product failed to run") \
    X(CUBLAS_STATUS_INTERNAL_ERROR, 14, "internal error")              \
    X(CUBLAS_STATUS_NOT_SUPPORTED, 15, "not supported")
// X(name, value)
#define CUDA_DATA_TYPES(X) \
    X(CUDA_R_32F, 0)       \
    X(CUDA_R_16F, 2)       \
    X(CUDA_R_16BF, 14)     \
    X(CUDA_R_8F_E4M3, 28)  \
    X(CUDA_R_8F_E5M2, 29)
#define CUBLAS_COMPUTE_TYPES(X) X(CUBLAS_COMPUTE_32F, 68)
#define CUBLAS_OPERATIONS(X) \
    X(CUBLAS_OP_N, 0)        \
    X(CUBLAS_OP_T, 1)
#define CUBLASLT_EPILOGUES(X)       \
    X(CUBLASLT_EPILOGUE_DEFAULT, 1) \
    X(CUBLASLT_EPILOGUE_BIAS, 4)
#define CUBLASLT_REDUCTION_SCHEMES(X)    \
    X(CUBLASLT_REDUCTION_SCHEME_NONE, 0) \
    X(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2)
#define CUBLASLT_MATMUL_DESC_ATTRIBUTES(X)      \
    X(CUBLASLT_MATMUL_DESC_SCALE_TYPE, 1)       \
    X(CUBLASLT_MATMUL_DESC_TRANSA, 3)           \
    X(CUBLASLT_MATMUL_DESC_TRANSB, 4)           \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE, 7)         \
    X(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)     \
    X(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 17) \
    X(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 18) \
    X(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 25)      \
    X(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 26)
#define CUBLASLT_MATRIX_LAYOUT_ATTRIBUTES(X) \
    X(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5) \
    X(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6)
#define CUBLASLT_PREFERENCE_ATTRIBUTES(X)            \
    X(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)   \
    X(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3) \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5) \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6) \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7) \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)
