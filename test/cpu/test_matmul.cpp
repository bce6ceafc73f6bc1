// Tests products on the CPU with arguments that runtime/linalg/linalg never passes; test/runtime/linalg/test_linalg.cu
// has the others.
#include "cpu/matmul.h"

#include <cublasLt.h>

#include <cmath>
#include <limits>
#include <vector>

#include "test/support/catch.h"

using namespace teon;
using namespace teon::cpu;

TEST_CASE("cpu/matmul: a factor of NaN gives NaN, also among calls of the same product with other factors") {
    constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> ones(16, 1.0f);
    std::vector<float> c;
    const auto run = [&](float alpha, float beta) {
        c.assign(16, 1.0f);
        matmul({.M = 4,
                .N = 4,
                .K = 4,
                .A = {ones.data(), 4},
                .B = {ones.data(), 4},
                .addend = {c.data(), 4},
                .C = c.data(),
                .ldc = 4,
                .alpha = alpha,
                .beta = beta});
        return c[5];
    };
    REQUIRE(run(1, 0) == 4);
    REQUIRE(std::isnan(run(kNotANumber, 0)));
    REQUIRE(run(2, 1) == 9);
    REQUIRE(std::isnan(run(2, kNotANumber)));
    REQUIRE(std::isnan(run(kNotANumber, kNotANumber)));
    REQUIRE(run(1, 0) == 4);
}

TEST_CASE("cpu/matmul: cuBLASLt refuses empty matrices and batches") {
    cublasLtHandle_t lt = nullptr;
    cublasLtMatmulDesc_t operation = nullptr;
    REQUIRE(cublasLtCreate(&lt) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    std::vector<float> memory(64);
    const auto multiply = [&](uint64_t m, uint64_t n, uint64_t k, int32_t batch) {
        cublasLtMatrixLayout_t layouts[3] = {};  // of A (m x k), B (k x n) and C (m x n), column-major
        const uint64_t sizes[3][2] = {{m, k}, {k, n}, {m, n}};
        for (int i = 0; i < 3; ++i) {
            cublasLtMatrixLayoutCreate(&layouts[i], CUDA_R_32F, sizes[i][0], sizes[i][1], 4);
            cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
        }
        const float one = 1;
        const float zero = 0;
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        const cublasStatus_t status =
            cublasLtMatmul(lt, operation, &one, memory.data(), layouts[0], memory.data() + 16, layouts[1], &zero,
                           memory.data() + 32, layouts[2], memory.data() + 32, layouts[2], nullptr, nullptr, 0, stream);
        cudaStreamDestroy(stream);
        for (const cublasLtMatrixLayout_t layout : layouts) cublasLtMatrixLayoutDestroy(layout);
        return status;
    };
    REQUIRE(multiply(4, 4, 4, 1) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(multiply(0, 4, 4, 1) == CUBLAS_STATUS_INVALID_VALUE);
    REQUIRE(multiply(4, 0, 4, 1) == CUBLAS_STATUS_INVALID_VALUE);
    REQUIRE(multiply(4, 4, 0, 1) == CUBLAS_STATUS_INVALID_VALUE);
    REQUIRE(multiply(4, 4, 4, 0) == CUBLAS_STATUS_INVALID_VALUE);
    cublasLtMatmulDescDestroy(operation);
    cublasLtDestroy(lt);
}
