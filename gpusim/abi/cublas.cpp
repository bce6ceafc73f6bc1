// The part of cuBLAS that multiplies matrices, on the products of cpu/matmul.h: gemm and its batches of equal strides
// ("cuBLAS", "Level-3 Function Reference" and "BLAS-like Extension"). Matrices are column-major. Everything else of
// cuBLAS is not exported, so that a program that needs it does not start.
#include <cuda_runtime.h>

#include <cstdio>

#include "base/dtype.h"
#include "cpu/include/cublasLt.h"
#include "cpu/matmul.h"
#include "cpu/stream.h"

struct cublasContext {
    cudaStream_t stream = nullptr;
};

namespace {

using teon::DType;
using teon::cpu::Matmul;

struct Operand {
    const void* data;
    int type, ld;
    long long stride = 0;
    int op = CUBLAS_OP_N;
};

cublasStatus_t refuse(const char* what, const char* why) {
    std::fprintf(stderr, "%s: the modelled GPU does not know %s\n", what, why);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

bool dtype_of(int type, DType& dtype) {
    if (type == CUDA_R_32F) dtype = DType::f32;
    if (type == CUDA_R_16BF) dtype = DType::bf16;
    return type == CUDA_R_32F || type == CUDA_R_16BF;
}

struct Sizes {
    int m, n, k;
    int batch = 1;
};

// C (m x n) = alpha op(A) (m x k) op(B) (k x n) + beta C, `batch` times, as the row-major product of the transposed.
cublasStatus_t multiply(const char* what, cublasContext* handle, const Sizes& x, const void* alpha, const Operand& a,
                        const Operand& b, const void* beta, const Operand& c) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    const bool trans_a = a.op == CUBLAS_OP_T;
    const bool trans_b = b.op == CUBLAS_OP_T;
    if ((a.op != CUBLAS_OP_N && !trans_a) || (b.op != CUBLAS_OP_N && !trans_b)) return CUBLAS_STATUS_INVALID_VALUE;
    if (x.m < 0 || x.n < 0 || x.k < 0 || x.batch < 0 || a.ld < (trans_a ? x.k : x.m) || b.ld < (trans_b ? x.n : x.k) ||
        c.ld < x.m)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (x.m == 0 || x.n == 0 || x.batch == 0) return CUBLAS_STATUS_SUCCESS;
    Matmul p;
    if (a.type != b.type || !dtype_of(a.type, p.in) || !dtype_of(c.type, p.out)) return refuse(what, "these types");
    p.C = const_cast<void*>(c.data);
    p.M = x.n;
    p.N = x.m;
    p.K = x.k;
    p.batch = x.batch;
    p.trans_a = trans_b;
    p.trans_b = trans_a;
    p.A = {b.data, b.ld, b.stride};
    p.B = {a.data, a.ld, a.stride};
    p.addend = {p.C, c.ld, c.stride};
    p.ldc = c.ld;
    p.stride_c = c.stride;
    p.alpha = *static_cast<const float*>(alpha);
    p.beta = *static_cast<const float*>(beta);
    if (teon::cpu::check_device(handle->stream, what) != cudaSuccess) return CUBLAS_STATUS_INVALID_VALUE;
    const cudaError_t queued = teon::cpu::enqueue(handle->stream, what, [p] { teon::cpu::matmul(p); });
    return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasContext** handle) {
    *handle = new cublasContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasContext* handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasContext* handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
// TF32 and workspaces change rounding and speed: products here are of floats as they are.
cublasStatus_t cublasSetMathMode(cublasContext*, int) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace_v2(cublasContext*, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasSgemm_v2(cublasContext* handle, int op_a, int op_b, int m, int n, int k, const float* alpha,
                              const float* a, int ld_a, const float* b, int ld_b, const float* beta, float* c,
                              int ld_c) {
    return multiply("cublasSgemm", handle, {m, n, k}, alpha, {a, CUDA_R_32F, ld_a, 0, op_a},
                    {b, CUDA_R_32F, ld_b, 0, op_b}, beta, {c, CUDA_R_32F, ld_c});
}
cublasStatus_t cublasSgemmStridedBatched(cublasContext* handle, int op_a, int op_b, int m, int n, int k,
                                         const float* alpha, const float* a, int ld_a, long long stride_a,
                                         const float* b, int ld_b, long long stride_b, const float* beta, float* c,
                                         int ld_c, long long stride_c, int batch) {
    return multiply("cublasSgemmStridedBatched", handle, {m, n, k, batch}, alpha, {a, CUDA_R_32F, ld_a, stride_a, op_a},
                    {b, CUDA_R_32F, ld_b, stride_b, op_b}, beta, {c, CUDA_R_32F, ld_c, stride_c});
}
cublasStatus_t cublasGemmEx(cublasContext* handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
                            const void* a, int type_a, int ld_a, const void* b, int type_b, int ld_b, const void* beta,
                            void* c, int type_c, int ld_c, int compute, int) {
    if (compute != CUBLAS_COMPUTE_32F) return refuse("cublasGemmEx", "this type of the sums");
    return multiply("cublasGemmEx", handle, {m, n, k}, alpha, {a, type_a, ld_a, 0, op_a}, {b, type_b, ld_b, 0, op_b},
                    beta, {c, type_c, ld_c});
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasContext* handle, int op_a, int op_b, int m, int n, int k,
                                          const void* alpha, const void* a, int type_a, int ld_a, long long stride_a,
                                          const void* b, int type_b, int ld_b, long long stride_b, const void* beta,
                                          void* c, int type_c, int ld_c, long long stride_c, int batch, int compute,
                                          int) {
    if (compute != CUBLAS_COMPUTE_32F) return refuse("cublasGemmStridedBatchedEx", "this type of the sums");
    return multiply("cublasGemmStridedBatchedEx", handle, {m, n, k, batch}, alpha, {a, type_a, ld_a, stride_a, op_a},
                    {b, type_b, ld_b, stride_b, op_b}, beta, {c, type_c, ld_c, stride_c});
}

}  // extern "C"
