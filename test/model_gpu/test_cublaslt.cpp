// The modelled GPU's requirements for a product, which are those of cuBLASLt's documentation.
#include <cublasLt.h>

#include <cmath>
#include <vector>

#include "runtime/cuda/device.h"

#include "test/model_gpu/model_gpu.h"
#include "test/support/catch.h"
#include "test/support/transfer.h"

using teon::Buffer;

namespace {

// A product D = op(A) op(B) of an m x k and a k x n matrix, column-major. By default, of 8 x 8 floats.
struct Problem {
    cudaDataType_t a = CUDA_R_32F, b = CUDA_R_32F, c = CUDA_R_32F, d = CUDA_R_32F;
    cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
    uint64_t m = 8, n = 8, k = 8;
    int64_t ld = 8;
    uint32_t alignment = 256;  // of A, in bytes, which the heuristic is promised
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    cudaDataType_t bias_type = CUDA_R_32F;
    int batch = 1;
    int64_t stride = 64;
};

class Product {
public:
    explicit Product(const Problem& p = {}) : p_(p) {
        const bool ta = p.trans_a == CUBLAS_OP_T;
        const bool tb = p.trans_b == CUBLAS_OP_T;
        REQUIRE(cublasLtCreate(&lt_) == CUBLAS_STATUS_SUCCESS);
        REQUIRE(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
        REQUIRE(cublasLtMatmulPreferenceCreate(&preference_) == CUBLAS_STATUS_SUCCESS);
        create(&a_, p.a, ta ? p.k : p.m, ta ? p.m : p.k);
        create(&b_, p.b, tb ? p.n : p.k, tb ? p.k : p.n);
        create(&c_, p.c, p.m, p.n);
        create(&d_, p.d, p.m, p.n);
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.trans_a);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.trans_b);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(p.bias_type));
    }
    ~Product() {
        cublasLtMatmulPreferenceDestroy(preference_);
        for (auto layout : {a_, b_, c_, d_}) cublasLtMatrixLayoutDestroy(layout);
        cublasLtMatmulDescDestroy(operation_);
        cublasLtDestroy(lt_);
    }
    template <typename T>
    void set(cublasLtMatmulDescAttributes_t attribute, T value) {
        REQUIRE(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
    }
    // Asks the heuristic for an algorithm.
    cublasStatus_t choose() {
        cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p_.alignment,
                                             sizeof p_.alignment);
        cublasLtMatmulHeuristicResult_t heuristic;
        int n = 0;
        const cublasStatus_t status =
            cublasLtMatmulAlgoGetHeuristic(lt_, operation_, a_, b_, c_, d_, preference_, 1, &heuristic, &n);
        algorithm_ = heuristic.algo;
        return status;
    }
    // Runs the product with an A that begins `offset` elements after an aligned address.
    cublasStatus_t run(int64_t offset = 0, Buffer<float>* workspace = nullptr) {
        const float one = 1;
        const float zero = 0;
        const teon::Stream stream;
        const Buffer<float> a(256);
        const Buffer<float> b(256);
        const Buffer<float> c(256);
        const cublasStatus_t status =
            cublasLtMatmul(lt_, operation_, &one, a.data() + offset, a_, b.data(), b_, &zero, c.data(), c_, c.data(),
                           d_, &algorithm_, workspace ? workspace->data() : nullptr,
                           workspace ? static_cast<size_t>(workspace->size()) * sizeof(float) : 0,
                           static_cast<cudaStream_t>(stream.handle()));
        stream.synchronize();
        return status;
    }

private:
    void create(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows, uint64_t columns) {
        REQUIRE(cublasLtMatrixLayoutCreate(layout, type, rows, columns, p_.ld) == CUBLAS_STATUS_SUCCESS);
        cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &p_.batch, sizeof p_.batch);
        cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &p_.stride,
                                         sizeof p_.stride);
    }
    const Problem p_;
    cublasLtHandle_t lt_;
    cublasLtMatmulDesc_t operation_;
    cublasLtMatrixLayout_t a_, b_, c_, d_;
    cublasLtMatmulPreference_t preference_;
    cublasLtMatmulAlgo_t algorithm_ = {};
};

}  // namespace

TEST_CASE("model_gpu/cublaslt: of epilogues only the bias is known, and it demands a bias") {
    NEEDS_MODEL_GPU();
    constexpr auto kGeluAux = static_cast<cublasLtEpilogue_t>(160);  // cuBLAS manual, cublasLtEpilogue_t: 32 | 128
    REQUIRE(Product({.epilogue = kGeluAux}).choose() == CUBLAS_STATUS_NOT_SUPPORTED);
    Product unbiased({.epilogue = CUBLASLT_EPILOGUE_BIAS});
    REQUIRE(unbiased.choose() == CUBLAS_STATUS_SUCCESS);
    REQUIRE(unbiased.run() == CUBLAS_STATUS_INVALID_VALUE);
}

TEST_CASE(
    "model_gpu/cublaslt: what the heuristic was promised of alignment binds every call and every matrix of a batch") {
    NEEDS_MODEL_GPU();
    Product one({.alignment = 16});
    REQUIRE(one.choose() == CUBLAS_STATUS_SUCCESS);
    REQUIRE(one.run() == CUBLAS_STATUS_SUCCESS);
    REQUIRE(one.run(4) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(one.run(2) == CUBLAS_STATUS_INVALID_VALUE);  // a later call of the same algorithm
    REQUIRE(Product({.batch = 2}).choose() == CUBLAS_STATUS_SUCCESS);
    REQUIRE(Product({.alignment = 16, .batch = 2, .stride = 68}).choose() ==
            CUBLAS_STATUS_INVALID_VALUE);  // B, C, D: 256

    const Buffer<float> bias(16);
    Product biased({.epilogue = CUBLASLT_EPILOGUE_BIAS});
    biased.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data()));
    REQUIRE(biased.choose() == CUBLAS_STATUS_SUCCESS);
    REQUIRE(biased.run() == CUBLAS_STATUS_SUCCESS);
    biased.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data() + 1));
    REQUIRE(biased.run() == CUBLAS_STATUS_INVALID_VALUE);
}

TEST_CASE("model_gpu/cublaslt: FP8 is taken as documented, K-major and in whole 16 bytes, from sm_89 on") {
    NEEDS_MODEL_GPU();
    constexpr auto good = CUBLAS_STATUS_SUCCESS;
    constexpr auto bad = CUBLAS_STATUS_NOT_SUPPORTED;
    const auto expected = teon::device_info().compute_capability >= 89 ? good : bad;
    // The heuristic's status for 32 x 32 matrices after a change.
    const auto verdict = [](auto change) {
        Problem problem{.a = CUDA_R_8F_E4M3,
                        .b = CUDA_R_8F_E4M3,
                        .c = CUDA_R_16BF,
                        .d = CUDA_R_16BF,
                        .trans_a = CUBLAS_OP_T,
                        .m = 32,
                        .n = 32,
                        .k = 32,
                        .ld = 32,
                        .bias_type = CUDA_R_16BF};
        change(problem);
        Product p(problem);
        const Buffer<float> device(256);
        p.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(device.data()));
        p.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(device.data()));
        return p.choose();
    };
    REQUIRE(verdict([](Problem&) {}) == expected);
    REQUIRE(verdict([](Problem& p) { p.a = CUDA_R_8F_E5M2; }) == expected);
    REQUIRE(verdict([](Problem& p) { p.b = CUDA_R_8F_E5M2; }) == expected);
    REQUIRE(verdict([](Problem& p) { p.c = p.d = CUDA_R_32F; }) == expected);
    REQUIRE(verdict([](Problem& p) { p.epilogue = CUBLASLT_EPILOGUE_BIAS; }) == expected);
    REQUIRE(verdict([](Problem& p) { p.a = p.b = CUDA_R_8F_E5M2; }) == bad);
    REQUIRE(verdict([](Problem& p) { p.b = CUDA_R_16BF; }) == bad);
    REQUIRE(verdict([](Problem& p) { p.c = CUDA_R_32F; }) == bad);
    REQUIRE(verdict([](Problem& p) { p.trans_a = CUBLAS_OP_N; }) == bad);
    REQUIRE(verdict([](Problem& p) { p.trans_b = CUBLAS_OP_T; }) == bad);
    REQUIRE(verdict([](Problem& p) { p.k = 24; }) == bad);
    REQUIRE(verdict([](Problem& p) { p.m = 28; }) == bad);
    REQUIRE(verdict([](Problem& p) { p.ld = 40; }) == bad);
    REQUIRE(verdict([](Problem& p) { p.alignment = 8; }) == bad);
    REQUIRE(verdict([](Problem& p) {
                p.epilogue = CUBLASLT_EPILOGUE_BIAS;
                p.bias_type = CUDA_R_32F;
            }) == bad);
}

TEST_CASE("model_gpu/cublaslt: a product overwrites its workspace") {
    NEEDS_MODEL_GPU();
    const teon::Stream stream;
    Buffer<float> workspace(4096);
    teon::zero(workspace.data(), workspace.size(), stream);
    stream.synchronize();
    Product p;
    REQUIRE(p.choose() == CUBLAS_STATUS_SUCCESS);
    REQUIRE(p.run(0, &workspace) == CUBLAS_STATUS_SUCCESS);
    const std::vector<float> values = teon::test::fetch(workspace, stream);
    for (const size_t at : {0, 1024, 2048, 3072, 4095}) REQUIRE(std::isnan(values[at]));
}
