// What cpu/ demands of a product with GELU as its epilogue, as the documentation of cuBLASLt does.
#include <cublasLt.h>

#include "runtime/device.h"

#include "test/support/catch.h"

namespace {

// The status of an 8 x 8 product of floats, or of its heuristic if that already refuses.
cublasStatus_t gelu(cublasLtEpilogue_t epilogue, void* aux, int64_t ld_aux, int batch = 1) {
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t matrix;
    cublasLtMatmulPreference_t preference;
    REQUIRE(cublasLtCreate(&lt) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatrixLayoutCreate(&matrix, CUDA_R_32F, 8, 8, 8) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS);
    cublasLtMatrixLayoutSetAttribute(matrix, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
    cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld_aux, sizeof ld_aux);
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(lt, operation, matrix, matrix, matrix, matrix, preference, 1, &found, &n);
    if (status == CUBLAS_STATUS_SUCCESS) {
        const float one = 1, zero = 0;
        const teon::Stream stream;
        const teon::Buffer<float> a(64), b(64), c(64);
        status = cublasLtMatmul(lt, operation, &one, a.data(), matrix, b.data(), matrix, &zero, c.data(), matrix,
                                c.data(), matrix, nullptr, nullptr, 0, static_cast<cudaStream_t>(stream.handle()));
        stream.synchronize();
    }
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(matrix);
    cublasLtMatmulDescDestroy(operation);
    cublasLtDestroy(lt);
    return status;
}

}  // namespace

TEST_CASE("cpu/cublaslt: an epilogue with aux demands it, and rows of it that begin at multiples of 8 elements") {
    const teon::Buffer<float> memory(256);
    void* const aux = memory.data();
    for (auto epilogue : {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_DGELU}) {
        REQUIRE(gelu(epilogue, aux, 8) == CUBLAS_STATUS_SUCCESS);
        REQUIRE(gelu(epilogue, aux, 16) == CUBLAS_STATUS_SUCCESS);
        REQUIRE(gelu(epilogue, nullptr, 8) == CUBLAS_STATUS_INVALID_VALUE);
        REQUIRE(gelu(epilogue, aux, 0) == CUBLAS_STATUS_INVALID_VALUE);
        REQUIRE(gelu(epilogue, aux, 12) == CUBLAS_STATUS_NOT_SUPPORTED);
        REQUIRE(gelu(epilogue, aux, 8, 2) == CUBLAS_STATUS_NOT_SUPPORTED);
    }
    REQUIRE(gelu(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, aux, 8) == CUBLAS_STATUS_INVALID_VALUE);  // no bias
    REQUIRE(gelu(CUBLASLT_EPILOGUE_DEFAULT, nullptr, 0) == CUBLAS_STATUS_SUCCESS);
}
