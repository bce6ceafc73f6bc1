// Linear algebra: products by cuBLASLt, NVIDIA's or cpu/'s, and around it.
//
// It is column-major. A row-major matrix is its own transpose in its eyes, so C = op(A) op(B) is computed as
// C^T = op(B)^T op(A)^T: its A is our B, its B is our A, its rows are our columns.
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <optional>

#include "base/integer.h"
#include "runtime/cuda_check.h"
#include "runtime/decompositions.h"
#include "runtime/linalg.h"
#include "runtime/linalg_kernels.h"
#include "runtime/simt.h"
#include "runtime/symmetric_product.h"
#include "runtime/tensor_core.h"

namespace teon {

namespace {

using detail::check_cuda;

// What NVIDIA recommends for Hopper; enough for every earlier and later chip.
constexpr size_t kWorkspaceBytes = 32 << 20;
// Room for the partial sums of a bias gradient, after the workspace.
constexpr size_t kBiasScratchBytes = 4 << 20;
constexpr int kAlgorithms = 8;        // that heuristics propose
constexpr double kSearchGain = 0.98;  // of the first proposal's time, below which another one is faster; more is noise
// Symmetric products of 16 bits may be our own kernel's; a CPU, which only imitates tensor cores, never takes it. The
// library's are split
// into up to kSymmetricParts block rows where both M and K are at least kSymmetricSplit; 2 save a quarter of the work,
// 4 save three eighths, which on an H200 pays for smaller products and more launches only when they are large (derived,
// not measured). On a CPU a launch costs less than the arithmetic.
constexpr int kSymmetricParts = 4;

cudaStream_t cuda(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

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

// A library object that is made by create(&handle, ...) and freed by Destroy.
template <typename Handle, auto Destroy>
class Owner {
public:
    template <typename Create, typename... Args>
    static Owner make(Create create, Args... args) {
        Owner owner;
        check_blas(create(&owner.handle_, args...), "making a descriptor");
        return owner;
    }
    Owner() = default;
    Owner(Owner&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
    Owner& operator=(Owner&& o) noexcept {
        std::swap(handle_, o.handle_);
        return *this;
    }
    ~Owner() {
        if (handle_) Destroy(handle_);
    }
    Handle get() const { return handle_; }

private:
    Handle handle_ = nullptr;
};
using Lt = Owner<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

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

// One call of the library: a Gemm whose batch is one level of `count` matrices at stride_inner, and whose C is read
// from `addend`.
struct Call {
    Gemm g;
    int count;
    Mat addend;

    bool has_aux() const { return g.epilogue == Epilogue::gelu || g.epilogue == Epilogue::dgelu; }
    // What the library adds, or null; a bias gradient is no business of its.
    const void* bias() const {
        return g.epilogue == Epilogue::bias || g.epilogue == Epilogue::gelu ? g.bias.data : nullptr;
    }
    cublasLtEpilogue_t epilogue() const {
        switch (g.epilogue) {
            case Epilogue::none:
            case Epilogue::bias_grad:
                return CUBLASLT_EPILOGUE_DEFAULT;
            case Epilogue::bias:
                return CUBLASLT_EPILOGUE_BIAS;
            case Epilogue::gelu:
                return g.bias.data ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
            case Epilogue::dgelu:
                return CUBLASLT_EPILOGUE_DGELU;
        }
        return CUBLASLT_EPILOGUE_DEFAULT;
    }
};

// For people.
std::string text_of(const Call& c) {
    const Gemm& g = c.g;
    return fmt::format("{} products of {} x {} x {} (M x N x K), {} to {}, row strides {}, {}, {}", c.count, g.M, g.N,
                       g.K, name_of(g.A.dtype), name_of(g.C.dtype), g.A.ld, g.B.ld, g.C.ld);
}

// The largest power of two, at most 256, that divides the addresses of all matrices of a batch.
uint32_t alignment(const Mat& x, int count) {
    uint64_t bits = reinterpret_cast<uintptr_t>(x.data) | 256u;
    if (count > 1) bits |= static_cast<uint64_t>(x.stride_inner) * size_of(x.dtype);
    return static_cast<uint32_t>(bits & (~bits + 1));
}

// Everything that the choice of an algorithm may depend on.
using Key = std::array<int64_t, 24>;
Key key_of(const Call& c) {
    const Gemm& g = c.g;
    return {g.M,
            g.N,
            g.K,
            g.trans_a * 2 + g.trans_b,
            static_cast<int>(g.A.dtype) * 4 + static_cast<int>(g.C.dtype) + (g.A.dtype != g.B.dtype) * 64,
            g.A.ld,
            g.B.ld,
            g.C.ld,
            c.addend.ld,
            c.count,
            c.count > 1 ? g.A.stride_inner : 0,
            c.count > 1 ? g.B.stride_inner : 0,
            c.count > 1 ? g.C.stride_inner : 0,
            c.count > 1 ? c.addend.stride_inner : 0,
            alignment(g.A, c.count),
            alignment(g.B, c.count),
            alignment(g.C, c.count),
            alignment(c.addend, c.count),
            c.epilogue(),
            c.bias() ? alignment(g.bias, 1) : 0,
            c.addend.data == g.C.data,
            g.beta != 0.0f,
            c.has_aux() ? g.aux.ld : 0,
            c.has_aux() ? alignment(g.aux, 1) : 0};
}

std::string text_of(const Key& key) {
    return fmt::format("{} x {} x {}: {}", key[0], key[1], key[2], fmt::join(key.begin() + 3, key.end(), " "));
}

struct Plan {
    Operation operation;
    MatrixLayout a, b, c, d;
    cublasLtMatmulAlgo_t algorithm;
};

MatrixLayout describe(const Mat& x, int64_t rows, int64_t columns, int count) {
    auto layout = MatrixLayout::make(cublasLtMatrixLayoutCreate, cuda_type(x.dtype), static_cast<uint64_t>(columns),
                                     static_cast<uint64_t>(rows), x.ld);
    if (count > 1) {
        set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(count));
        set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, x.stride_inner);
    }
    return layout;
}

// What of an operation changes from call to call.
void set_pointers(const Operation& o, const Call& c) {
    if (c.bias()) set(o, CUBLASLT_MATMUL_DESC_BIAS_POINTER, c.bias());
    if (c.has_aux()) set(o, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, c.g.aux.data);
    if (!is_fp8(c.g.A.dtype)) return;
    set(o, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(c.g.B.scale));
    set(o, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(c.g.A.scale));
}

// Calls f with x.data as a pointer of its C++ type.
template <typename F>
void with_elements(const Mat& x, F f) {
    visit_dtype(x.dtype, [&]<typename T>(T) { f(static_cast<T*>(x.data)); });
}

Mat shifted(Mat x, int64_t elements) {
    if (x.data) x.data = static_cast<std::byte*>(x.data) + elements * size_of(x.dtype);
    return x;
}

}  // namespace

// ---- products -----------------------------------------------------------------------------------

struct Linalg::Impl {
    const Stream& stream;
    Lt lt = Lt::make(cublasLtCreate);
    Buffer<std::byte> workspace{kWorkspaceBytes + kBiasScratchBytes};
    std::map<Key, std::optional<Plan>> plans = {};  // none where the library refuses
    std::map<Key, bool> own_symmetric = {};         // whether our kernel was found to be faster than the library
    int multiprocessors = device_info().multiprocessors;
    int refused_kinds = 0;
    bool searching = false;
    std::map<std::string, std::string> known = {};  // algorithms by product
    std::function<void(const AlgorithmChoice&)> chosen = {};
    Decompositions decompositions{stream};

    float* bias_scratch() const { return reinterpret_cast<float*>(workspace.data() + kWorkspaceBytes); }

    cublasStatus_t run(const Call& c, const Plan& p, const cublasLtMatmulAlgo_t& algorithm, void* result) const {
        return cublasLtMatmul(lt.get(), p.operation.get(), &c.g.alpha, c.g.B.data, p.a.get(), c.g.A.data, p.b.get(),
                              &c.g.beta, c.addend.data, p.c.get(), result, p.d.get(), &algorithm, workspace.data(),
                              kWorkspaceBytes, cuda(stream));
    }
    std::optional<Plan>& plan(const Call& c);
    std::nullopt_t refused(const Call& c);
    std::optional<Plan> make_plan(const Call& c);
    cublasLtMatmulAlgo_t choose(const Call& c, const Plan& p, const cublasLtMatmulHeuristicResult_t* found, int n);
    AlgorithmChoice fastest(const Call& c, const Plan& p, const cublasLtMatmulHeuristicResult_t* found, int n) const;
    void multiply(const Call& c);
    bool multiply_by_library(const Call& c);
    void multiply_plainly(const Call& c);
    void multiply_batches(const Gemm& g, const Mat& addend);
    bool capturing() const;
    double milliseconds(const std::function<void()>& run) const;
    void multiply_symmetric(const Gemm& g, const Mat& addend);
    void multiply_symmetric_by_library(const Gemm& g, const Mat& addend);
    bool prefers_own_symmetric(const Gemm& g, const Mat& addend);
    bool search_own_symmetric(const Gemm& g, const Mat& addend, const std::string& product);
    void multiply_gelu(const Gemm& g, const Mat& addend);
    void reduce_bias(const Gemm& g);
};

// The descriptors and the algorithm for a call; made once per kind of call. None if the library has no algorithm.
std::optional<Plan>& Linalg::Impl::plan(const Call& c) {
    const Key key = key_of(c);
    auto known = plans.find(key);
    if (known == plans.end()) known = plans.emplace(key, make_plan(c)).first;
    return known->second;
}

// Says so, as a kernel of ours is slower, and of FP8 there is none; once per kind of call, as its plan is none from now
// on.
std::nullopt_t Linalg::Impl::refused(const Call& c) {
    CHECK(!is_fp8(c.g.A.dtype), "gemm: cuBLASLt refuses {}; use --matmul-dtype same", text_of(c));
    refused_kinds++;
    fmt::print(stderr, "warning: cuBLASLt refuses {}: a slower kernel computes them\n", text_of(c));
    return std::nullopt;
}

std::optional<Plan> Linalg::Impl::make_plan(const Call& c) {
    const Gemm& g = c.g;
    Plan p;
    // Plain fp32 for float inputs too: TF32 would keep 10 bits of the mantissa.
    p.operation = Operation::make(cublasLtMatmulDescCreate, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, g.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSB, g.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue());
    if (c.bias()) set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(g.C.dtype));
    if (c.has_aux()) set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.aux.ld);
    set_pointers(p.operation, c);
    p.a = g.trans_b ? describe(g.B, g.N, g.K, c.count) : describe(g.B, g.K, g.N, c.count);
    p.b = g.trans_a ? describe(g.A, g.K, g.M, c.count) : describe(g.A, g.M, g.K, c.count);
    p.c = describe(c.addend, g.M, g.N, c.count);
    p.d = describe(g.C, g.M, g.N, c.count);

    auto preference = Preference::make(cublasLtMatmulPreferenceCreate);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
    // Sums split along K meet in fp32 and in a fixed order, or are not split: the same call gives the same bits, and
    // no partial sum is rounded to 16 bits.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(g.B, c.count));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(g.A, c.count));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(c.addend, c.count));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(g.C, c.count));

    cublasLtMatmulHeuristicResult_t found[kAlgorithms] = {};
    int n = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt.get(), p.operation.get(), p.a.get(), p.b.get(), p.c.get(),
                                                           p.d.get(), preference.get(), kAlgorithms, found, &n);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_blas(status, "choosing an algorithm");
    auto end = std::remove_if(found, found + n, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
    n = static_cast<int>(end - found);
    if (n == 0) return refused(c);
    p.algorithm = choose(c, p, found, n);
    return p;
}

// An algorithm as text: only ever compared, and used where the library proposes it.
std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
    return fmt::format("{:x}", fmt::join(algorithm.data, "."));
}

bool Linalg::Impl::capturing() const {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(cuda(stream), &capture), "gemm: asking about stream capture");
    return capture != cudaStreamCaptureStatusNone;
}

// Of one of several runs in a row.
double Linalg::Impl::milliseconds(const std::function<void()>& run) const {
    constexpr int runs = 5;
    Event from, to;
    from.record(stream);
    for (int k = 0; k < runs; k++) run();
    to.record(stream);
    to.synchronize();
    return Event::milliseconds(from, to) / runs;
}

// The first proposal; or, if a search was asked for, the known one or the fastest.
cublasLtMatmulAlgo_t Linalg::Impl::choose(const Call& c, const Plan& p, const cublasLtMatmulHeuristicResult_t* found,
                                          int n) {
    if (!searching || n == 1 || capturing()) return found[0].algo;

    const std::string product = text_of(key_of(c));
    auto proposal = [&](const std::string& algorithm) {
        return std::find_if(found, found + n, [&](const auto& r) { return text_of(r.algo) == algorithm; });
    };
    if (const auto choice = known.find(product); choice != known.end())
        if (const auto* r = proposal(choice->second); r != found + n) return r->algo;
    AlgorithmChoice choice = fastest(c, p, found, n);
    choice.product = product;
    if (chosen) chosen(choice);
    return proposal(choice.algorithm)->algo;
}

AlgorithmChoice Linalg::Impl::fastest(const Call& c, const Plan& p, const cublasLtMatmulHeuristicResult_t* found,
                                      int n) const {
    const Mat& C = c.g.C;
    const bool adds = c.g.beta != 0.0f && c.addend.data == C.data;
    const int64_t elements = (c.count - 1) * C.stride_inner + (c.g.M - 1) * C.ld + c.g.N;
    const Buffer<std::byte> memory(adds ? elements * size_of(C.dtype) : 0);
    void* const result = adds ? memory.data() : C.data;
    AlgorithmChoice best;
    for (int i = 0; i < n; i++) {
        if (run(c, p, found[i].algo, result) != CUBLAS_STATUS_SUCCESS) continue;  // also warms up
        const double ms = milliseconds([&] { check_blas(run(c, p, found[i].algo, result), "trying an algorithm"); });
        if (best.algorithm.empty()) best = {"", text_of(found[i].algo), ms, ms};
        if (ms < best.ms && ms < kSearchGain * best.first_ms) best.algorithm = text_of(found[i].algo), best.ms = ms;
    }
    if (best.algorithm.empty()) best.algorithm = text_of(found[0].algo);  // which will say what is wrong
    return best;
}

// By the library, or by the plain kernel where it refuses. Without aux.
void Linalg::Impl::multiply(const Call& c) {
    if (!multiply_by_library(c)) multiply_plainly(c);
}

// False if the library refuses, in its heuristic or only now. Each row is a column of the library's D = C^T, to which
// its epilogue adds a vector of the length of a column.
bool Linalg::Impl::multiply_by_library(const Call& c) {
    std::optional<Plan>& p = plan(c);
    if (!p) return false;
    set_pointers(p->operation, c);
    const cublasStatus_t status = run(c, *p, p->algorithm, c.g.C.data);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
        p = refused(c);
        return false;
    }
    check_blas(status, "cublasLtMatmul");
    return true;
}

void Linalg::Impl::multiply_plainly(const Call& c) {
    const Gemm& g = c.g;
    auto tiles = [](int n) { return static_cast<unsigned>(ceil_div(n, kPlainTile)); };
    const dim3 grid(tiles(g.N), tiles(g.M), static_cast<unsigned>(c.count)), block(kPlainTile, kPlainTile);
    CHECK(
        grid.y <= 65535 && grid.z <= 65535,
        "gemm: cuBLASLt refuses {}, and so many are beyond our own kernel; make sizes, strides and addresses multiples "
        "of 8 elements",
        text_of(c));
    visit_dtype(g.A.dtype, [&]<typename T>(T) {
        visit_dtype(g.C.dtype, [&]<typename TC>(TC) {
            if constexpr (std::is_same_v<TC, float> || std::is_same_v<TC, T>) {
                const PlainProduct p{g.C, c.addend, g.A, g.B, c.bias(), g.trans_a, g.trans_b};
                launch<multiply_plain_kernel<T, TC>>({grid, block}, stream, p, g.M, g.N, g.K, g.alpha, g.beta);
            }
        });
    });
}

// Both levels of a batch: as one where the strides allow it, else one call per matrix of the shorter level.
void Linalg::Impl::multiply_batches(const Gemm& g, const Mat& addend) {
    const Mat* mats[] = {&g.A, &g.B, &g.C, &addend};
    auto merges = [&](const Mat* x) { return x->stride_outer == g.batch_inner * x->stride_inner; };
    Gemm one = g;
    Mat add = addend;
    int count = g.batch_inner, calls = g.batch_outer;
    if (std::all_of(std::begin(mats), std::end(mats), merges)) {
        count *= calls, calls = 1;
    } else if (calls > count) {
        std::swap(count, calls);
        for (Mat* x : {&one.A, &one.B, &one.C, &add}) std::swap(x->stride_inner, x->stride_outer);
    }
    for (int i = 0; i < calls; i++) {
        Gemm call = one;
        call.A = shifted(one.A, i * one.A.stride_outer), call.B = shifted(one.B, i * one.B.stride_outer);
        call.C = shifted(one.C, i * one.C.stride_outer);
        multiply({call, count, shifted(add, i * add.stride_outer)});
    }
}

void Linalg::Impl::multiply_symmetric(const Gemm& g, const Mat& addend) {
    if (prefers_own_symmetric(g, addend)) {
        symmetric_product(g, addend, stream);
    } else {
        multiply_symmetric_by_library(g, addend);
    }
}

// Decided once per kind of product: by a search or its known result, without one by a rule.
bool Linalg::Impl::prefers_own_symmetric(const Gemm& g, const Mat& addend) {
    if (!kGpu || !symmetric_product_supports(g, addend)) return false;
    const Key key = key_of({g, g.batch_inner, addend});
    auto choice = own_symmetric.find(key);
    if (choice == own_symmetric.end()) {
        const bool own = searching && !capturing() ? search_own_symmetric(g, addend, "symmetric " + text_of(key))
                                                   : symmetric_product_pays(g.M, g.batch_inner, multiprocessors);
        choice = own_symmetric.emplace(key, own).first;
    }
    return choice->second;
}

bool Linalg::Impl::search_own_symmetric(const Gemm& g, const Mat& addend, const std::string& product) {
    static constexpr const char* kOwn = "tiles up to the diagonal";
    static constexpr const char* kLibrary = "library";
    if (const auto choice = known.find(product); choice != known.end()) return choice->second == kOwn;
    Gemm trial = g;
    Buffer<std::byte> memory;
    if (g.beta != 0.0f && addend.data == g.C.data) {
        memory = Buffer<std::byte>(((g.batch_inner - 1) * g.C.stride_inner + g.M * g.C.ld) * size_of(g.C.dtype));
        trial.C.data = memory.data();
    }
    auto time = [&](auto run) {
        run();  // also chooses the library's algorithm
        return milliseconds(run);
    };
    const double library = time([&] { multiply_symmetric_by_library(trial, addend); });
    const double own = time([&] { symmetric_product(trial, addend, stream); });
    const bool faster = own < kSearchGain * library;
    if (chosen) chosen({product, faster ? kOwn : kLibrary, faster ? own : library, library});
    return faster;
}

// The block rows up to the diagonal, then the mirror image, also of a single one: the two halves of a full product are
// rounded apart, after which powers of a matrix do not commute and Newton-Schulz in Gram form loses two bits.
void Linalg::Impl::multiply_symmetric_by_library(const Gemm& g, const Mat& addend) {
    const int size = std::min(g.M, g.K);
    const int parts = size < kSymmetricSplit ? 1 : std::min(2 * size / kSymmetricSplit, kSymmetricParts);
    int height = round_up(g.M / parts, 128);
    for (int row = 0; row < g.M; row += height) {
        Gemm part = g;
        part.M = std::min(height, g.M - row);
        part.N = row + part.M;
        part.A = shifted(g.A, g.trans_a ? row : row * g.A.ld);
        part.C = shifted(g.C, row * g.C.ld);
        multiply_batches(part, shifted(addend, row * addend.ld));
    }
    unsigned tiles = static_cast<unsigned>(ceil_div(g.M, kTile));
    CHECK(g.batch_inner <= 65535 && tiles <= 65535, "gemm: a symmetric batch of {} x {} matrices of {} rows",
          g.batch_outer, g.batch_inner, g.M);
    with_elements(g.C, [&]<typename T>(T* c) {
        for (int i = 0; i < g.batch_outer; i++) {
            launch<mirror_kernel<T>>({dim3(tiles, tiles, static_cast<unsigned>(g.batch_inner)), dim3(kTile, kTileRows)},
                                     stream, c + i * g.C.stride_outer, g.C.ld, g.C.stride_inner, g.M);
        }
    });
}

// Where the library refuses: a product without GELU, and a pass over it, before which it was rounded once more.
void Linalg::Impl::multiply_gelu(const Gemm& g, const Mat& addend) {
    if (multiply_by_library({g, 1, addend})) return;
    const bool backward = g.epilogue == Epilogue::dgelu;
    Gemm product = g;
    product.epilogue = !backward && g.bias.data ? Epilogue::bias : Epilogue::none;
    if (!backward) product.C = g.aux;
    multiply({product, 1, addend});
    with_elements(g.C, [&]<typename T>(T* c) {
        launch<gelu_epilogue_kernel<T>>({ceil_div(int64_t{g.M} * g.N, kGeluBlock), kGeluBlock}, stream, c,
                                        static_cast<const T*>(g.aux.data), g.C.ld, g.aux.ld, g.M, g.N, backward);
    });
}

// bias = beta * bias + row sums of op(A), by kernels of our own: it adds to fp32 whatever C's type is, and no storage
// type or alignment is excluded, as they are in the library's epilogue.
void Linalg::Impl::reduce_bias(const Gemm& g) {
    int most = static_cast<int>(std::min<int64_t>(kBiasParts, kBiasScratchBytes / sizeof(float) / g.M));
    CHECK(most > 0, "gemm: a bias gradient of {} elements; at most {}", g.M, kBiasScratchBytes / sizeof(float));
    int parts = std::min(most, ceil_div(g.K, kBiasRows));
    const int per_part = ceil_div(g.K, parts);
    parts = ceil_div(g.K, per_part);
    const int64_t step_j = g.trans_a ? 1 : g.A.ld, step_k = g.trans_a ? g.A.ld : 1;
    auto blocks = [&](int width) { return ceil_div(g.M, kBiasBlock * width); };
    with_elements(g.A, [&]<typename T>(T* a) {
        auto sum = [&]<int W>(std::integral_constant<int, W>) {
            launch<bias_partial_kernel<T, W>>(
                {dim3(static_cast<unsigned>(blocks(W)), static_cast<unsigned>(parts)), kBiasBlock}, stream,
                bias_scratch(), a, step_j, step_k, g.M, g.K, per_part);
        };
        constexpr int W = kVecWidth<T>;
        if (step_j == 1 && g.M % W == 0 && vec_aligned<T, W>(g.A.ld, a)) {
            sum(std::integral_constant<int, W>{});
        } else {
            sum(std::integral_constant<int, 1>{});
        }
    });
    float* bias = static_cast<float*>(g.bias.data);
    constexpr int W = kVecWidth<float>;
    if (vec_aligned<float, W>(g.M, bias_scratch())) {
        launch<bias_total_kernel<W>>({blocks(W), kBiasBlock}, stream, bias, bias_scratch(), g.M, parts, g.beta);
    } else {
        launch<bias_total_kernel<1>>({blocks(1), kBiasBlock}, stream, bias, bias_scratch(), g.M, parts, g.beta);
    }
}

Linalg::Linalg(const Stream& stream) : impl_(new Impl{stream}) {}
Linalg::~Linalg() = default;
Linalg::Linalg(Linalg&&) noexcept = default;
Linalg& Linalg::operator=(Linalg&&) noexcept = default;

void Linalg::gemm(const Gemm& g) {
    check_gemm(g);
    const int batch = g.batch_inner * g.batch_outer;
    const auto name = [&] {
        return fmt::format("gemm {} x {} x {} {}{}{}", g.M, g.N, g.K, g.trans_a ? 'T' : 'N', g.trans_b ? 'T' : 'N',
                           batch > 1 ? fmt::format(", {} of them", batch) : "");
    };
    const ProfileScope profile(impl_->stream, name, 2.0 * g.M * g.N * g.K * batch);
    run(g);
}

void Linalg::bias_gradient(float* db, const Mat& dy, int rows, int columns, float beta) {
    Gemm g;
    g.M = columns, g.K = rows, g.trans_a = true;
    g.A = dy;
    g.bias = mat(db, columns);
    g.beta = beta;
    impl_->reduce_bias(g);
}

void Linalg::run(const Gemm& g) {
    const Mat& addend = g.addend.data && g.beta != 0.0f ? g.addend : g.C;
    switch (g.epilogue) {
        case Epilogue::none: {
            if (g.symmetric) return impl_->multiply_symmetric(g, addend);
            return impl_->multiply_batches(g, addend);
        }
        case Epilogue::bias:
            return impl_->multiply({g, 1, addend});
        case Epilogue::gelu:
        case Epilogue::dgelu:
            return impl_->multiply_gelu(g, addend);
        case Epilogue::bias_grad:
            impl_->multiply_batches(g, addend);
            return impl_->reduce_bias(g);
    }
}

void Linalg::search_algorithms(std::map<std::string, std::string> known,
                               std::function<void(const AlgorithmChoice&)> chosen) {
    impl_->searching = true;
    impl_->known = std::move(known);
    impl_->chosen = std::move(chosen);
    impl_->plans.clear();
    impl_->own_symmetric.clear();
}

void Linalg::svd(float* A, int m, int n, float* U, float* S, float* Vt) {
    impl_->decompositions.svd(A, m, n, U, S, Vt);
}

void Linalg::eigh(float* A, int n, float* w) { impl_->decompositions.eigh(A, n, w); }

const Stream& Linalg::stream() const { return impl_->stream; }
int Linalg::refused_kinds() const { return impl_->refused_kinds; }
size_t Linalg::workspace_bytes() const { return impl_->workspace.size() + impl_->decompositions.workspace_bytes(); }

}  // namespace teon
