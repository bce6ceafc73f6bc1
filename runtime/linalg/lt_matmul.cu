// cuBLASLt is column-major: it sees a row-major matrix as its transpose. Therefore C = op(A) op(B) is computed as C^T =
// op(B)^T op(A)^T: the library's A is our B, its B is our A, and its rows are our columns.
#include "runtime/linalg/lt_matmul.h"

#include <cublasLt.h>

#include <fmt/core.h>

#include <compare>
#include <map>
#include <optional>

#include "base/standard_streams.h"
#include "runtime/cuda/cuda_check.h"
#include "runtime/cuda/device.h"

namespace teon {

namespace {

// The size that NVIDIA recommends for Hopper; enough for every earlier and later chip.
constexpr size_t kWorkspaceBytes = 32 << 20;

void check_blas(cublasStatus_t status, const char* what) {
    CHECK(status == CUBLAS_STATUS_SUCCESS, "gemm: {}: {}", what, cublasLtGetStatusString(status));
}

cudaDataType_t cuda_type(DType t) {
    switch (t) {
        case DType::f32:
            return CUDA_R_32F;
        case DType::bf16:
            return CUDA_R_16BF;
        case DType::f16:
            return CUDA_R_16F;
        case DType::e4m3:
            return CUDA_R_8F_E4M3;
        case DType::e5m2:
            return CUDA_R_8F_E5M2;
    }
    __builtin_unreachable();
}

using Lt = detail::Handle<cublasLtHandle_t, cublasLtDestroy>;
using Operation = detail::Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = detail::Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = detail::Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// Returns the object that create(&object, args...) makes.
template <typename Handle, typename... Args, typename... Given>
Handle make(cublasStatus_t (*create)(typename Handle::Type*, Args...), Given... args) {
    typename Handle::Type object = nullptr;
    check_blas(create(&object, args...), "making a descriptor");
    return Handle(object);
}

template <typename T>
void set(const Operation& o, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check_blas(cublasLtMatmulDescSetAttribute(o.get(), attribute, &value, sizeof(T)), "describing the operation");
}
template <typename T>
void set(const MatrixLayout& l, cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
    check_blas(cublasLtMatrixLayoutSetAttribute(l.get(), attribute, &value, sizeof(T)), "describing a matrix");
}
template <typename T>
void set(const Preference& p, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(p.get(), attribute, &value, sizeof(T)), "stating a preference");
}

// Returns the largest power of two, at most 256, that divides the addresses of all matrices of a batch.
uint32_t alignment(const Mat& x, int count) {
    uint64_t bits = reinterpret_cast<uintptr_t>(x.data) | 256u;
    if (count > 1) bits |= static_cast<uint64_t>(x.stride_inner) * size_of(x.dtype);
    return static_cast<uint32_t>(bits & (~bits + 1));
}

struct Plan {
    Operation operation;
    MatrixLayout a, b, c, d;
    cublasLtMatmulAlgo_t algorithm;
};

MatrixLayout describe(const Mat& x, int64_t rows, int64_t columns, int count) {
    auto layout = make<MatrixLayout>(cublasLtMatrixLayoutCreate, cuda_type(x.dtype), static_cast<uint64_t>(columns),
                                     static_cast<uint64_t>(rows), x.ld);
    if (count > 1) {
        set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(count));
        set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, x.stride_inner);
    }
    return layout;
}

// Sets the attributes of an operation that change from call to call.
void set_pointers(const Operation& o, const LtCall& c) {
    if (c.bias()) set(o, CUBLASLT_MATMUL_DESC_BIAS_POINTER, c.bias());
    if (!is_fp8(c.g.A.dtype)) return;
    set(o, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(c.g.B.scale));
    set(o, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(c.g.A.scale));
}

// Everything that the choice of an algorithm may depend on.
struct MatrixKey {
    DType dtype;
    int64_t ld;
    int64_t stride;      // between the matrices of a batch; 0: there is only one
    uint32_t alignment;  // in bytes, of all matrices of the batch
    auto operator<=>(const MatrixKey&) const = default;
};
struct CallKey {
    int M, N, K;
    int count;
    bool trans_a, trans_b;
    MatrixKey a, b, c, addend;
    bool adds;                // beta is not 0
    bool in_place;            // addend is C
    uint32_t bias_alignment;  // 0: no bias
    bool fast_accumulation;
    auto operator<=>(const CallKey&) const = default;
};

MatrixKey key_of(const Mat& x, int count) {
    return {.dtype = x.dtype, .ld = x.ld, .stride = count > 1 ? x.stride_inner : 0, .alignment = alignment(x, count)};
}

CallKey key_of(const LtCall& c) {
    const Gemm& g = c.g;
    return {.M = g.M,
            .N = g.N,
            .K = g.K,
            .count = c.count,
            .trans_a = g.trans_a,
            .trans_b = g.trans_b,
            .a = key_of(g.A, c.count),
            .b = key_of(g.B, c.count),
            .c = key_of(g.C, c.count),
            .addend = key_of(c.addend, c.count),
            .adds = g.beta != 0.0f,
            .in_place = c.addend.data == g.C.data,
            .bias_alignment = c.bias() ? alignment(g.bias, 1) : 0,
            .fast_accumulation = g.fast_accumulation};
}

}  // namespace

std::string text_of(const LtCall& c) {
    const Gemm& g = c.g;
    return fmt::format("{} products of {} x {} x {} (M x N x K), {} to {}, row strides {}, {}, {}", c.count, g.M, g.N,
                       g.K, name_of(g.A.dtype), name_of(g.C.dtype), g.A.ld, g.B.ld, g.C.ld);
}

struct LtMatmul::Impl {
    const Stream& stream;
    Lt lt = make<Lt>(cublasLtCreate);
    Buffer<std::byte> workspace{kWorkspaceBytes};
    std::map<CallKey, std::optional<Plan>> plans = {};  // none if the library refuses
    int refused_kinds = 0;

    std::optional<Plan>& plan(const LtCall& c);
    std::nullopt_t refused(const LtCall& c);
    std::optional<Plan> make_plan(const LtCall& c);
};

// Returns the descriptors and the algorithm for a call, made once per kind of call; none if the library has no
// algorithm.
std::optional<Plan>& LtMatmul::Impl::plan(const LtCall& c) {
    const CallKey key = key_of(c);
    auto entry = plans.find(key);
    if (entry == plans.end()) entry = plans.emplace(key, make_plan(c)).first;
    return entry->second;
}

// Warns that a slower kernel of ours computes the call. Throws Error if it is FP8, for which there is no such kernel.
// Called once per kind of call, because its plan is none from now on.
std::nullopt_t LtMatmul::Impl::refused(const LtCall& c) {
    CHECK(!is_fp8(c.g.A.dtype), "gemm: cuBLASLt refuses {}; use --matmul-dtype same", text_of(c));
    ++refused_kinds;
    print_error(fmt::format("warning: cuBLASLt refuses {}: a slower kernel computes them\n", text_of(c)));
    return std::nullopt;
}

std::optional<Plan> LtMatmul::Impl::make_plan(const LtCall& c) {
    const Gemm& g = c.g;
    Plan p;
    // Plain fp32 also for float inputs: TF32 would keep only 10 bits of the mantissa.
    p.operation = make<Operation>(cublasLtMatmulDescCreate, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, g.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSB, g.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, c.bias() ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    if (c.bias()) set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(g.C.dtype));
    if (g.fast_accumulation) set(p.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    set_pointers(p.operation, c);
    p.a = g.trans_b ? describe(g.B, g.N, g.K, c.count) : describe(g.B, g.K, g.N, c.count);
    p.b = g.trans_a ? describe(g.A, g.K, g.M, c.count) : describe(g.A, g.M, g.K, c.count);
    p.c = describe(c.addend, g.M, g.N, c.count);
    p.d = describe(g.C, g.M, g.N, c.count);

    auto preference = make<Preference>(cublasLtMatmulPreferenceCreate);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
    // Sums are either not split along K, or their parts are added in fp32 and in a fixed order: the same call gives the
    // same bits, and no partial sum is rounded to 16 bits.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(g.B, c.count));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(g.A, c.count));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(c.addend, c.count));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(g.C, c.count));

    cublasLtMatmulHeuristicResult_t proposal = {};
    int n = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt.get(), p.operation.get(), p.a.get(), p.b.get(), p.c.get(),
                                                           p.d.get(), preference.get(), 1, &proposal, &n);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_blas(status, "choosing an algorithm");
    if (n == 0 || proposal.state != CUBLAS_STATUS_SUCCESS) return refused(c);
    p.algorithm = proposal.algo;
    return p;
}

LtMatmul::LtMatmul(const Stream& stream) : impl_(new Impl{stream}) {}
LtMatmul::~LtMatmul() = default;

// The bias: each row of C is a column of the library's D = C^T, and the library's epilogue adds a vector to every
// column. The library refuses a call in its heuristic, or only here.
bool LtMatmul::multiply(const LtCall& c) {
    std::optional<Plan>& p = impl_->plan(c);
    if (!p) return false;
    set_pointers(p->operation, c);
    const cublasStatus_t status =
        cublasLtMatmul(impl_->lt.get(), p->operation.get(), &c.g.alpha, c.g.B.data, p->a.get(), c.g.A.data, p->b.get(),
                       &c.g.beta, c.addend.data, p->c.get(), c.g.C.data, p->d.get(), &p->algorithm,
                       impl_->workspace.data(), kWorkspaceBytes, static_cast<cudaStream_t>(impl_->stream.handle()));
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
        p = impl_->refused(c);
        return false;
    }
    check_blas(status, "cublasLtMatmul");
    return true;
}

int LtMatmul::refused_kinds() const { return impl_->refused_kinds; }

}  // namespace teon
