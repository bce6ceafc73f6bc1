// cuBLASLt on the CPU. This file checks the requirements in cuBLASLt's documentation, and cpu/matmul computes products.
//
// CUBLASLT_REFUSE=heuristic|call also refuses 16-bit matrices whose leading dimension, batch stride or address is not a
// multiple of 16 bytes, as GPUs' libraries have done for some shapes. With `heuristic` the heuristic proposes nothing;
// with `call` it proposes an algorithm, but the call fails. This tests how callers work around such refusals. The
// default on the modelled GPU is `heuristic`.
#include <array>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <string_view>

#include "cpu/fast_accumulation.h"
#include "cpu/hardware.h"
#include "cpu/include/cublasLt.h"
#include "cpu/matmul.h"
#include "cpu/stream.h"

struct cublasLtContext {
    enum class Refuse { documented, in_heuristic, in_call } refuse;
};
struct cublasLtMatmulDescOpaque_t {
    cublasOperation_t trans_a = CUBLAS_OP_N;
    cublasOperation_t trans_b = CUBLAS_OP_N;
    int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;  // also one that is not known here
    const void* bias = nullptr;
    int32_t bias_type = -1;                              // -1: D's type
    const float *scale_a = nullptr, *scale_b = nullptr;  // on the device; null: 1
    int8_t fast_accumulation = 0;                        // of FP8
    bool adds_bias() const { return epilogue == CUBLASLT_EPILOGUE_BIAS; }
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
    int32_t batch = 1;
    int64_t stride = 0;
    bool operator==(const cublasLtMatrixLayoutOpaque_t&) const = default;
};
struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace = 0;
    uint32_t reduction_schemes = ~0u;
    uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

namespace teon::cpu {
namespace {

using Layout = cublasLtMatrixLayoutOpaque_t;
using Refuse = cublasLtContext::Refuse;

DType dtype(cudaDataType_t t) {
    switch (t) {
        case CUDA_R_32F:
            return DType::f32;
        case CUDA_R_16F:
            return DType::f16;
        case CUDA_R_16BF:
            return DType::bf16;
        case CUDA_R_8F_E4M3:
            return DType::e4m3;
        case CUDA_R_8F_E5M2:
            return DType::e5m2;
    }
    __builtin_unreachable();
}

int64_t bytes(const Layout& x, int64_t elements) { return elements * size_of(dtype(x.type)); }
bool is_fp8(const Layout& x) { return teon::is_fp8(dtype(x.type)); }

// An attribute of a descriptor, and the member that holds it.
struct Attribute {
    int name;
    void* member;
    size_t bytes;
    template <typename T>
    Attribute(int name, T& member) : name(name), member(&member), bytes(sizeof(T)) {}
};

// Sets the attribute of this name. `bytes` must be the size of its type.
cublasStatus_t set(std::initializer_list<Attribute> attributes, int name, const void* value, size_t bytes) {
    for (const Attribute& a : attributes) {
        if (a.name != name || a.bytes != bytes || !value) continue;
        memcpy(a.member, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

template <typename T, typename... Args>
cublasStatus_t create(T** object, Args... args) {
    if (!object) return CUBLAS_STATUS_INVALID_VALUE;
    *object = new (std::nothrow) T{args...};
    return *object ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

template <typename T>
cublasStatus_t destroy(T* object) {
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

// Checks the requirements of FP8 kernels, which exist from sm_89 on and have one scale per tensor: A is transposed and
// B is not, at most one of them is E5M2, and "all matrix dimensions must meet the optimal requirements listed in Tensor
// Core Usage". Here D must be bf16 or float, and batches, for which nothing is documented, are refused.
cublasStatus_t check_fp8(const cublasLtMatmulDescOpaque_t& o, const Layout& a, const Layout& b, const Layout& d) {
    const bool formats = is_fp8(a) && is_fp8(b) && (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3) &&
                         (d.type == CUDA_R_16BF || d.type == CUDA_R_32F);
    const bool whole = a.rows % 16 == 0 && a.ld % 16 == 0 && b.ld % 16 == 0 &&
                       bytes(d, static_cast<int64_t>(d.rows)) % 16 == 0 && bytes(d, d.ld) % 16 == 0;
    return formats && whole && multiplies_fp8() && o.trans_a == CUBLAS_OP_T && o.trans_b == CUBLAS_OP_N &&
                   d.batch == 1 && (!o.adds_bias() || d.type == CUDA_R_16BF)
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

// Checks the requirements on the four layouts together in the documentation of cublasLtMatmul(), for CUBLAS_COMPUTE_32F
// and a scale of type CUDA_R_32F.
cublasStatus_t check_problem(const cublasLtMatmulDescOpaque_t& o, const Layout& a, const Layout& b, const Layout& c,
                             const Layout& d) {
    const bool ta = o.trans_a == CUBLAS_OP_T;
    const bool tb = o.trans_b == CUBLAS_OP_T;
    const uint64_t m = ta ? a.columns : a.rows;
    const uint64_t k = ta ? a.rows : a.columns;
    const uint64_t k_of_b = tb ? b.columns : b.rows;
    const uint64_t n = tb ? b.rows : b.columns;
    for (const Layout* x : {&a, &b, &c, &d}) {
        if (x->rows == 0 || x->columns == 0 || x->batch < 1) return CUBLAS_STATUS_INVALID_VALUE;
        if (x->ld < static_cast<int64_t>(x->rows) || x->batch != d.batch) return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (k != k_of_b || d.rows != m || d.columns != n || c.rows != m || c.columns != n)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (c.type != d.type || !(o.adds_bias() || o.epilogue == CUBLASLT_EPILOGUE_DEFAULT))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (o.adds_bias() && o.bias_type != -1 && o.bias_type != d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (is_fp8(a) || is_fp8(b)) return check_fp8(o, a, b, d);
    if (a.type != b.type || (d.type != a.type && d.type != CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return o.scale_a || o.scale_b ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

// Returns whether all columns and matrices of a 16-bit layout are aligned to 16 bytes if the first one is.
bool strides_aligned(const Layout& x) {
    return x.type == CUDA_R_32F || (bytes(x, x.ld) % 16 == 0 && (x.batch == 1 || bytes(x, x.stride) % 16 == 0));
}
// Returns whether all matrices of a batch are aligned to `alignment` bytes if the first one is.
bool keeps(const Layout& x, uint64_t alignment) {
    return x.batch == 1 || static_cast<uint64_t>(bytes(x, x.stride)) % alignment == 0;
}
bool address_aligned(const Layout& x, uint64_t address) { return x.type == CUDA_R_32F || address % 16 == 0; }

uint64_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

// Returns the largest power of two, at most 256, that divides the address.
uint64_t alignment(const void* p) { return (address(p) | 256) & -(address(p) | 256); }

using Layouts = std::array<Layout, 4>;  // of A, B, C and D
constexpr int kBias = 4;                // index of the bias in an algorithm's promised alignments, after A, B, C and D

// Checks the addresses of the layouts' matrices and of the bias, which the algorithm has been promised.
cublasStatus_t check_addresses(const cublasLtContext& library, const cublasLtMatmulDescOpaque_t& o,
                               const Layouts& layouts, const void* const* data, const cublasLtMatmulAlgo_t* algorithm) {
    for (size_t i = 0; i < layouts.size(); ++i) {
        const uint64_t promised = algorithm ? algorithm->data[i] : 1;
        if (promised == 0 || address(data[i]) % promised != 0 || !keeps(layouts[i], promised))
            return CUBLAS_STATUS_INVALID_VALUE;
        if ((library.refuse != Refuse::documented || is_fp8(layouts[0])) &&
            !(strides_aligned(layouts[i]) && address_aligned(layouts[i], address(data[i])))) {
            return CUBLAS_STATUS_NOT_SUPPORTED;
        }
    }
    const bool promised = !o.adds_bias() || !algorithm || address(o.bias) % algorithm->data[kBias] == 0;
    return promised ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// The column-major D = op(A) op(B) is the row-major D^T = op(B)^T op(A)^T: cuBLASLt's B is A of Matmul, and its columns
// are rows.
Matmul matmul_of(const cublasLtMatmulDescOpaque_t& o, const Layouts& layouts, const void* const* data, void* D,
                 float alpha, float beta) {
    const auto& [a, b, c, d] = layouts;
    Matmul m;
    m.M = static_cast<int64_t>(d.columns);
    m.N = static_cast<int64_t>(d.rows);
    m.K = static_cast<int64_t>(o.trans_a == CUBLAS_OP_T ? a.rows : a.columns);
    m.batch = d.batch;
    m.trans_a = o.trans_b == CUBLAS_OP_T;
    m.trans_b = o.trans_a == CUBLAS_OP_T;
    m.in = dtype(a.type);
    m.out = dtype(d.type);
    m.A = {data[1], b.ld, b.stride};
    m.B = {data[0], a.ld, a.stride};
    m.addend = {data[2], c.ld, c.stride};
    m.C = D;
    m.ldc = d.ld;
    m.stride_c = d.stride;
    m.alpha = alpha;
    m.beta = beta;
    m.bias = o.adds_bias() ? o.bias : nullptr;
    return m;
}

}  // namespace
}  // namespace teon::cpu

using namespace teon::cpu;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    const char* asked = getenv("CUBLASLT_REFUSE");
    const std::string_view refusals = asked ? asked : default_refusals();
    Refuse refuse = Refuse::documented;
    if (refusals == "heuristic") refuse = Refuse::in_heuristic;
    if (refusals == "call") refuse = Refuse::in_call;
    return create(handle, refuse);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

const char* cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
#define TEON_MESSAGE(name, value, message) \
    case name:                             \
        return message;
        CUBLAS_STATUSES(TEON_MESSAGE)
#undef TEON_MESSAGE
    }
    return "unknown status";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    return create(operation);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) { return destroy(operation); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t o, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
    cudaDataType_t scale_type = CUDA_R_32F;
    const cublasStatus_t status = set({{CUBLASLT_MATMUL_DESC_SCALE_TYPE, scale_type},
                                       {CUBLASLT_MATMUL_DESC_TRANSA, o->trans_a},
                                       {CUBLASLT_MATMUL_DESC_TRANSB, o->trans_b},
                                       {CUBLASLT_MATMUL_DESC_EPILOGUE, o->epilogue},
                                       {CUBLASLT_MATMUL_DESC_BIAS_POINTER, o->bias},
                                       {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, o->bias_type},
                                       {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, o->scale_a},
                                       {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, o->scale_b},
                                       {CUBLASLT_MATMUL_DESC_FAST_ACCUM, o->fast_accumulation}},
                                      attribute, value, bytes);
    return scale_type == CUDA_R_32F ? status : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    return create(layout, type, rows, columns, ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t x, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
    return set(
        {{CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, x->batch}, {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, x->stride}},
        attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return create(preference); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
    return set({{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, p->workspace},
                {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, p->reduction_schemes},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p->alignment[0]},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p->alignment[1]},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p->alignment[2]},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p->alignment[3]}},
               attribute, value, bytes);
}

// There is one algorithm. It requires each call to keep the alignments promised here; the bias's is given by its
// address in the operation.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                              cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t preference, int capacity,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
    if (!handle || !operation || !A || !B || !C || !D || !preference || !results || !count || capacity <= 0) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *count = 0;
    if (cublasStatus_t status = check_problem(*operation, *A, *B, *C, *D); status != CUBLAS_STATUS_SUCCESS)
        return status;
    const Layout* const layouts[] = {A, B, C, D};
    results[0] = {};
    for (int i = 0; i < kBias; ++i) {
        const uint64_t promised = preference->alignment[i];
        if ((handle->refuse == Refuse::in_heuristic || is_fp8(*A)) &&
            !(strides_aligned(*layouts[i]) && address_aligned(*layouts[i], promised))) {
            return CUBLAS_STATUS_NOT_SUPPORTED;
        }
        if (!keeps(*layouts[i], promised)) return CUBLAS_STATUS_INVALID_VALUE;
        results[0].algo.data[i] = promised;
    }
    results[0].algo.data[kBias] = alignment(operation->bias);
    results[0].wavesCount = 1.0f;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

// NOLINTNEXTLINE(readability-function-size): the parameters are NVIDIA's
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t layout_a, const void* B, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* C, cublasLtMatrixLayout_t layout_c, void* D,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    if (!handle || !operation || !layout_a || !layout_b || !layout_c || !layout_d || !alpha || !beta || !A || !B ||
        !D) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const auto& o = *operation;
    const Layout& a = *layout_a;
    const Layout& b = *layout_b;
    const Layout& d = *layout_d;
    if (cublasStatus_t status = check_problem(o, a, b, *layout_c, d); status != CUBLAS_STATUS_SUCCESS) return status;
    const float scale = *static_cast<const float*>(alpha);
    const float keep = *static_cast<const float*>(beta);
    const Layout& c = keep == 0.0f ? d : *layout_c;  // C is not read
    if (keep == 0.0f) C = D;
    if (!C || (o.adds_bias() && !o.bias) || (C == D && !(c == d)) || address(workspace) % 16 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    const void* data[] = {A, B, C, D};
    const Layouts layouts = {a, b, c, d};
    if (cublasStatus_t status = check_addresses(*handle, o, layouts, data, algorithm); status != CUBLAS_STATUS_SUCCESS)
        return status;
    const Matmul m = matmul_of(o, layouts, data, D, scale, keep);
    if (check_device(stream, "cublasLtMatmul") != cudaSuccess) return CUBLAS_STATUS_INVALID_VALUE;
    const cudaError_t queued =
        submit(stream, "cublasLtMatmul", [m, workspace, workspace_bytes, o = o, type_b = dtype(b.type)] {
            disturb_workspace(workspace, workspace_bytes);
            if (!teon::is_fp8(m.in)) return matmul(m);
            const auto value = [](const float* scale) { return scale ? *scale : 1.0f; };
            const auto multiply = o.fast_accumulation ? matmul_fp8_fast : matmul_fp8;
            multiply(m, type_b, m.in, value(o.scale_a) * value(o.scale_b));
        });
    return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
