// The part of cuBLASLt that runtime/ uses, for CPUs. Names, enumerators, values and meanings are those of NVIDIA's
// "cuBLAS" documentation, chapter "Using the cuBLASLt API" (docs.nvidia.com/cuda/cublas), which has a section for each
// function and type. cpu/cublaslt.cpp says which calls are refused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cublasLt_values.h"
#include "cuda_runtime.h"

#define TEON_ENUMERATOR(name, value) name = value,
#define TEON_STATUS(name, value, message) name = value,
enum cublasStatus_t { CUBLAS_STATUSES(TEON_STATUS) };
enum cudaDataType_t { CUDA_DATA_TYPES(TEON_ENUMERATOR) };
enum cublasComputeType_t { CUBLAS_COMPUTE_TYPES(TEON_ENUMERATOR) };
enum cublasOperation_t { CUBLAS_OPERATIONS(TEON_ENUMERATOR) };
enum cublasLtEpilogue_t { CUBLASLT_EPILOGUES(TEON_ENUMERATOR) };
enum cublasLtReductionScheme_t { CUBLASLT_REDUCTION_SCHEMES(TEON_ENUMERATOR) };
enum cublasLtMatmulDescAttributes_t { CUBLASLT_MATMUL_DESC_ATTRIBUTES(TEON_ENUMERATOR) };
enum cublasLtMatrixLayoutAttribute_t { CUBLASLT_MATRIX_LAYOUT_ATTRIBUTES(TEON_ENUMERATOR) };
enum cublasLtMatmulPreferenceAttributes_t { CUBLASLT_PREFERENCE_ATTRIBUTES(TEON_ENUMERATOR) };
#undef TEON_STATUS
#undef TEON_ENUMERATOR

using cublasLtHandle_t = struct cublasLtContext*;
using cublasLtMatmulDesc_t = struct cublasLtMatmulDescOpaque_t*;
using cublasLtMatrixLayout_t = struct cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatmulPreference_t = struct cublasLtMatmulPreferenceOpaque_t*;

struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
};

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
const char* cublasLtGetStatusString(cublasStatus_t status);

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes);

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes);

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes);

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                              cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found);
// D = alpha op(A) op(B) + beta C, then the epilogue; alpha and beta (float) are read before this returns.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t layout_a, const void* B, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* C, cublasLtMatrixLayout_t layout_c, void* D,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream);
}  // extern "C"
