// Linear algebra on a GPU: cuBLASLt for products, cuSOLVER for decompositions.
//
// Both libraries are column-major. A row-major matrix is its own transpose in their eyes, so
// C = op(A) op(B) is computed as C^T = op(B)^T op(A)^T: their A is our B, their B is our A, their rows are our columns.
#include <cublasLt.h>
#include <cusolverDn.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>

#include "runtime/activation.h"
#include "runtime/cuda_check.h"
#include "runtime/linalg.h"
#include "runtime/linalg_check.h"
#include "runtime/linalg_profile.h"
#include "runtime/simt.h"

namespace teon {

namespace {

using detail::check_cuda;

// What NVIDIA recommends for Hopper; enough for every earlier and later chip.
constexpr size_t kWorkspaceBytes = 32 << 20;
// Room for the partial sums of a bias gradient, after the workspace.
constexpr size_t kBiasScratchBytes = 4 << 20;
// A symmetric product is split into 2 or 4 block rows where both M and K are at least this: 2 save a quarter of the
// work, 4 save three eighths. Mirroring reads and writes half of C once; at 790 TFLOP/s and 4 TB/s (H200) that takes as
// long as a quarter of a product of depth 800, so below these sizes the full product should be faster (derived, not
// measured).
constexpr int kSymmetricSplit2 = 1024, kSymmetricSplit4 = 2048;
constexpr int kAlgorithms = 8;  // that heuristics propose

cudaStream_t cuda(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

void check_blas(cublasStatus_t status, const char* what) {
    CHECK(status == CUBLAS_STATUS_SUCCESS, "gemm: {}: {}", what, cublasLtGetStatusString(status));
}

void check_solver(cusolverStatus_t status, const char* operation) {
    if (status == CUSOLVER_STATUS_SUCCESS) return;
    const char* reason = status == CUSOLVER_STATUS_ALLOC_FAILED       ? "out of device memory"
                         : status == CUSOLVER_STATUS_NOT_INITIALIZED  ? "cuSOLVER could not be initialized"
                         : status == CUSOLVER_STATUS_INVALID_VALUE    ? "invalid argument"
                         : status == CUSOLVER_STATUS_ARCH_MISMATCH    ? "not supported by this GPU"
                         : status == CUSOLVER_STATUS_EXECUTION_FAILED ? "a kernel failed"
                                                                      : "internal error";
    throw Error(fmt::format("{}: {} (cuSOLVER status {})", operation, reason, static_cast<int>(status)));
}

cudaDataType_t cuda_type(DType t) { return t == DType::f32 ? CUDA_R_32F : t == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F; }

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
    cublasLtEpilogue_t epilogue;
    const void* bias;
};

// The largest power of two, at most 256, that divides the addresses of all matrices of a batch.
uint32_t alignment(const Mat& x, int count) {
    uint64_t bits = reinterpret_cast<uintptr_t>(x.data) | 256u;
    if (count > 1) bits |= static_cast<uint64_t>(x.stride_inner) * size_of(x.dtype);
    return static_cast<uint32_t>(bits & (~bits + 1));
}

// Everything that the choice of an algorithm may depend on.
using Key = std::array<int64_t, 22>;
Key key_of(const Call& c) {
    const Gemm& g = c.g;
    return {g.M,
            g.N,
            g.K,
            g.trans_a * 2 + g.trans_b,
            static_cast<int>(g.A.dtype) * 4 + static_cast<int>(g.C.dtype),
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
            c.epilogue,
            c.bias ? alignment({const_cast<void*>(c.bias)}, 1) : 0,
            c.addend.data == g.C.data,
            g.beta != 0.0f};
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

// ---- kernels around the products ----------------------------------------------------------------

constexpr int kBlock = 256;
constexpr int kTile = 32;       // square tile that goes through shared memory
constexpr int kTileRows = 8;    // threads of a tile's block along y
constexpr int kBiasParts = 64;  // partial sums per element of a bias gradient, at most

// c = gelu_tanh(x), both M x N, in vectors of W elements; one block per row and kBlock vectors.
template <typename T, int W>
__global__ void __launch_bounds__(kBlock) gelu_kernel(T* c, int64_t ldc, const T* x, int64_t ldx, int N) {
    int64_t row = blockIdx.x;
    int j = (static_cast<int>(blockIdx.y) * kBlock + static_cast<int>(threadIdx.x)) * W;
    if (j >= N) return;
    Vec<T, W> v = load_vec<W>(x + row * ldx + j);
#pragma unroll
    for (int k = 0; k < W; k++) v[k] = T(gelu_tanh(static_cast<float>(v[k])));
    store_vec(c + row * ldc + j, v);
}

// Every row of c (M x N) = bias.
template <typename T>
__global__ void __launch_bounds__(kBlock) fill_rows_kernel(T* c, int64_t ldc, const T* bias, int N) {
    int j = static_cast<int>(blockIdx.y) * kBlock + static_cast<int>(threadIdx.x);
    if (j < N) c[int64_t{blockIdx.x} * ldc + j] = bias[j];
}

// partial[part * M + j] = sum of A(j, k) over the part's k, in an order that depends on the shape only.
template <typename T>
__global__ void __launch_bounds__(kTile* kTileRows)
    bias_partial_kernel(float* partial, const T* A, int64_t step_j, int64_t step_k, int M, int K, int per_part) {
    SHARED(float, sums, kTile* kTileRows);
    int j = static_cast<int>(blockIdx.x) * kTile + static_cast<int>(threadIdx.x);
    int begin = static_cast<int>(blockIdx.y) * per_part, end = min(K, begin + per_part);
    float sum = 0.0f;
    if (j < M) {
        for (int k = begin + static_cast<int>(threadIdx.y); k < end; k += kTileRows) {
            sum += static_cast<float>(A[j * step_j + k * step_k]);
        }
    }
    sums[threadIdx.y * kTile + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || j >= M) return;
    for (int y = 1; y < kTileRows; y++) sum += sums[y * kTile + threadIdx.x];
    partial[int64_t{blockIdx.y} * M + j] = sum;
}

// bias[j] = beta * bias[j] + sum of partial[part * M + j] over the parts.
__global__ void __launch_bounds__(kBlock)
    bias_total_kernel(float* bias, const float* partial, int M, int parts, float beta) {
    int j = static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x);
    if (j >= M) return;
    float sum = 0.0f;
    for (int part = 0; part < parts; part++) sum += partial[int64_t{part} * M + j];
    bias[j] = beta == 0.0f ? sum : fmaf(beta, bias[j], sum);
}

// C(i, j) = C(j, i) for j > i, tile by tile; blockIdx.z counts the matrices of a batch.
template <typename T>
__global__ void __launch_bounds__(kTile* kTileRows) mirror_kernel(T* C, int64_t ld, int64_t stride, int n) {
    SHARED(T, tile, kTile * (kTile + 1));
    int down = static_cast<int>(blockIdx.y), across = static_cast<int>(blockIdx.x);
    if (across > down) return;  // above the diagonal
    T* c = C + blockIdx.z * stride;
    int column = across * kTile + static_cast<int>(threadIdx.x);
    for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
        int row = down * kTile + y;
        if (row < n && column < n) tile[y * (kTile + 1) + threadIdx.x] = c[row * ld + column];
    }
    __syncthreads();
    int to_column = down * kTile + static_cast<int>(threadIdx.x);
    for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
        int to_row = across * kTile + y;
        if (to_row < to_column && to_column < n) c[to_row * ld + to_column] = tile[threadIdx.x * (kTile + 1) + y];
    }
}

// out (columns x rows) = in (rows x columns) transposed; packed.
__global__ void __launch_bounds__(kBlock) transpose_kernel(float* out, const float* in, int rows, int columns) {
    int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
    if (i < int64_t{rows} * columns) out[i % columns * rows + i / columns] = in[i];
}

// *found = 1 if an element is NaN or infinite.
__global__ void __launch_bounds__(kBlock) find_nonfinite_kernel(int* found, const float* x, int64_t n) {
    int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
    if (i < n && !isfinite(x[i])) *found = 1;
}

int64_t blocks_for(int64_t n) { return (n + kBlock - 1) / kBlock; }

template <typename T>
void gelu(const Gemm& g, const Stream& stream) {
    T* c = static_cast<T*>(g.C.data);
    const T* x = static_cast<const T*>(g.aux.data);
    constexpr int W = kVecWidth<T>;
    bool wide = g.N % W == 0 && vec_aligned<T, W>(g.C.ld, c) && vec_aligned<T, W>(g.aux.ld, x);
    dim3 grid(static_cast<unsigned>(g.M), static_cast<unsigned>(blocks_for(wide ? g.N / W : g.N)));
    if (wide) {
        launch<gelu_kernel<T, W>>({grid, kBlock}, stream, c, g.C.ld, x, g.aux.ld, g.N);
    } else {
        launch<gelu_kernel<T, 1>>({grid, kBlock}, stream, c, g.C.ld, x, g.aux.ld, g.N);
    }
}

// Calls f with a pointer of the type that x holds.
template <typename F>
void with_elements(const Mat& x, F f) {
    switch (x.dtype) {
        case DType::f32:
            return f(static_cast<float*>(x.data));
        case DType::bf16:
            return f(static_cast<bf16*>(x.data));
        case DType::f16:
            return f(static_cast<f16*>(x.data));
    }
}

void require(bool supported, const Gemm& g) {
    CHECK(
        supported,
        "gemm: cuBLASLt has no algorithm for {} x {} x {} (M x N x K), A {}, B {}, {} to {}, row strides {}, {}, {}{}; "
        "make sizes, strides and addresses multiples of 8 elements",
        g.M, g.N, g.K, g.trans_a ? "transposed" : "as stored", g.trans_b ? "transposed" : "as stored",
        name_of(g.A.dtype), name_of(g.C.dtype), g.A.ld, g.B.ld, g.C.ld,
        g.epilogue == Epilogue::none ? "" : ", with a bias");
}

Mat shifted(Mat x, int64_t elements) {
    if (x.data) x.data = static_cast<std::byte*>(x.data) + elements * size_of(x.dtype);
    return x;
}

void check_convergence(const char* operation, int m, int n, int info) {
    CHECK(info >= 0, "{}: cuSOLVER rejects argument {} for a {} x {} matrix", operation, -info, m, n);
    CHECK(info == 0, "{}: no convergence for a {} x {} matrix ({} values are missing)", operation, m, n, info);
}

}  // namespace

// ---- products -----------------------------------------------------------------------------------

struct Linalg::Impl {
    const Stream& stream;
    Lt lt = Lt::make(cublasLtCreate);
    Buffer<std::byte> workspace{kWorkspaceBytes + kBiasScratchBytes};
    std::map<Key, Plan> plans = {};
    bool autotune = false;
    cusolverDnHandle_t solver = nullptr;  // made when first needed

    ~Impl() {
        if (solver) cusolverDnDestroy(solver);
    }
    float* bias_scratch() const { return reinterpret_cast<float*>(workspace.data() + kWorkspaceBytes); }

    cublasStatus_t run(const Call& c, const Plan& p, const cublasLtMatmulAlgo_t& algorithm) const {
        return cublasLtMatmul(lt.get(), p.operation.get(), &c.g.alpha, c.g.B.data, p.a.get(), c.g.A.data, p.b.get(),
                              &c.g.beta, c.addend.data, p.c.get(), c.g.C.data, p.d.get(), &algorithm, workspace.data(),
                              kWorkspaceBytes, cuda(stream));
    }
    const Plan* plan(const Call& c);
    cublasLtMatmulAlgo_t fastest(const Call& c, const Plan& p, const cublasLtMatmulHeuristicResult_t* found, int n);
    bool multiply(const Gemm& g, const Mat& addend, int count, cublasLtEpilogue_t epilogue, const void* bias);
    void multiply_bias(const Gemm& g, const Mat& addend);
    void multiply_batches(const Gemm& g, const Mat& addend);
    void multiply_symmetric(const Gemm& g, const Mat& addend, int parts);
    void reduce_bias(const Gemm& g);
    void check_finite(const char* operation, const float* A, int64_t n);
    int read(const int* device_value) const;
    cusolverDnHandle_t solver_handle(const char* operation);
};

// The descriptors and the algorithm for a call; made once per kind of call. Null if the library has no algorithm.
const Plan* Linalg::Impl::plan(const Call& c) {
    Key key = key_of(c);
    if (auto known = plans.find(key); known != plans.end()) return &known->second;

    const Gemm& g = c.g;
    Plan p;
    // Plain fp32 for float inputs too: TF32 would keep 10 bits of the mantissa.
    p.operation = Operation::make(cublasLtMatmulDescCreate, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, g.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSB, g.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
    if (c.bias) {
        set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(g.C.dtype));
        set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, c.bias);
    }
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
    if (n == 0) return nullptr;
    p.algorithm = fastest(c, p, found, n);
    return &plans.emplace(key, std::move(p)).first->second;
}

// The first proposal; or with autotuning the one that takes the least time, where trying them changes nothing.
cublasLtMatmulAlgo_t Linalg::Impl::fastest(const Call& c, const Plan& p, const cublasLtMatmulHeuristicResult_t* found,
                                           int n) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(cuda(stream), &capture), "gemm: asking about stream capture");
    if (!autotune || n == 1 || c.g.beta != 0.0f || capture != cudaStreamCaptureStatusNone) return found[0].algo;

    constexpr int runs = 5;
    int best = 0;
    double best_ms = 0.0;
    Event from, to;
    for (int i = 0; i < n; i++) {
        if (run(c, p, found[i].algo) != CUBLAS_STATUS_SUCCESS) continue;  // also warms up
        from.record(stream);
        for (int k = 0; k < runs; k++) check_blas(run(c, p, found[i].algo), "trying an algorithm");
        to.record(stream);
        to.synchronize();
        double ms = Event::milliseconds(from, to);
        if (best_ms == 0.0 || ms < best_ms) best = i, best_ms = ms;
    }
    return found[best].algo;
}

// One library call for `count` matrices at stride_inner. False if the library has no algorithm for it.
bool Linalg::Impl::multiply(const Gemm& g, const Mat& addend, int count, cublasLtEpilogue_t epilogue,
                            const void* bias) {
    Call c{g, count, addend, epilogue, bias};
    const Plan* p = plan(c);
    if (!p) return false;
    if (bias) set(p->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    check_blas(run(c, *p, p->algorithm), "cublasLtMatmul");
    return true;
}

// One product and a bias on each of its rows. Each row is a column of the library's D = C^T, whose epilogue adds a
// vector of the length of a column. Where it has none (odd sizes or addresses), C begins as the bias and the product is
// added.
void Linalg::Impl::multiply_bias(const Gemm& g, const Mat& addend) {
    if (multiply(g, addend, 1, CUBLASLT_EPILOGUE_BIAS, g.bias.data)) return;
    require(g.beta == 0.0f, g);
    with_elements(g.C, [&]<typename T>(T* c) {
        dim3 grid(static_cast<unsigned>(g.M), static_cast<unsigned>(blocks_for(g.N)));
        launch<fill_rows_kernel<T>>({grid, kBlock}, stream, c, g.C.ld, static_cast<const T*>(g.bias.data), g.N);
    });
    Gemm onto_bias = g;
    onto_bias.beta = 1.0f;
    multiply_batches(onto_bias, g.C);
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
        require(multiply(call, shifted(add, i * add.stride_outer), count, CUBLASLT_EPILOGUE_DEFAULT, nullptr), g);
    }
}

// The block rows up to the diagonal, then the mirror image.
void Linalg::Impl::multiply_symmetric(const Gemm& g, const Mat& addend, int parts) {
    int height = (g.M / parts + 127) / 128 * 128;
    for (int row = 0; row < g.M; row += height) {
        Gemm part = g;
        part.M = std::min(height, g.M - row);
        part.N = row + part.M;
        part.A = shifted(g.A, g.trans_a ? row : row * g.A.ld);
        part.C = shifted(g.C, row * g.C.ld);
        multiply_batches(part, shifted(addend, row * addend.ld));
    }
    unsigned tiles = static_cast<unsigned>((g.M + kTile - 1) / kTile);
    CHECK(g.batch_inner <= 65535 && tiles <= 65535, "gemm: a symmetric batch of {} x {} matrices of {} rows",
          g.batch_outer, g.batch_inner, g.M);
    with_elements(g.C, [&]<typename T>(T* c) {
        for (int i = 0; i < g.batch_outer; i++) {
            launch<mirror_kernel<T>>({dim3(tiles, tiles, static_cast<unsigned>(g.batch_inner)), dim3(kTile, kTileRows)},
                                     stream, c + i * g.C.stride_outer, g.C.ld, g.C.stride_inner, g.M);
        }
    });
}

// bias = beta * bias + row sums of op(A), by kernels of our own: it adds to fp32 whatever C's type is, and no storage
// type or alignment is excluded, as they are in the library's epilogue.
void Linalg::Impl::reduce_bias(const Gemm& g) {
    int most = static_cast<int>(std::min<int64_t>(kBiasParts, kBiasScratchBytes / sizeof(float) / g.M));
    CHECK(most > 0, "gemm: a bias gradient of {} elements; at most {}", g.M, kBiasScratchBytes / sizeof(float));
    int parts = std::min(most, (g.K + 4 * kTileRows - 1) / (4 * kTileRows));
    int per_part = (g.K + parts - 1) / parts;
    parts = (g.K + per_part - 1) / per_part;
    int64_t step_j = g.trans_a ? 1 : g.A.ld, step_k = g.trans_a ? g.A.ld : 1;
    dim3 grid(static_cast<unsigned>((g.M + kTile - 1) / kTile), static_cast<unsigned>(parts));
    with_elements(g.A, [&]<typename T>(T* a) {
        launch<bias_partial_kernel<T>>({grid, dim3(kTile, kTileRows)}, stream, bias_scratch(), a, step_j, step_k, g.M,
                                       g.K, per_part);
    });
    launch<bias_total_kernel>({blocks_for(g.M), kBlock}, stream, static_cast<float*>(g.bias.data), bias_scratch(), g.M,
                              parts, g.beta);
}

Linalg::Linalg(const Stream& stream) : impl_(new Impl{stream}) {}
Linalg::~Linalg() = default;
Linalg::Linalg(Linalg&&) noexcept = default;
Linalg& Linalg::operator=(Linalg&&) noexcept = default;

void Linalg::gemm(const Gemm& g) {
    detail::check_gemm(g);
    const ProfileScope profile = detail::profile_scope(g, impl_->stream);
    run(g);
}

void Linalg::run(const Gemm& g) {
    const Mat& addend = g.addend.data && g.beta != 0.0f ? g.addend : g.C;
    switch (g.epilogue) {
        case Epilogue::none: {
            int size = std::min(g.M, g.K), parts = size >= kSymmetricSplit4 ? 4 : size >= kSymmetricSplit2 ? 2 : 1;
            if (g.symmetric && parts > 1) return impl_->multiply_symmetric(g, addend, parts);
            return impl_->multiply_batches(g, addend);
        }
        case Epilogue::bias:
            return impl_->multiply_bias(g, addend);
        case Epilogue::gelu_bias: {
            // The library's own GELU epilogue activates the sum before it is rounded, by a tanh of its own. Then
            // recomputing from aux would give other bits; so the product goes to aux and our function makes C of it.
            Gemm to_aux = g;
            to_aux.C = g.aux;
            impl_->multiply_bias(to_aux, g.beta == 0.0f ? g.aux : addend);
            return with_elements(g.C, [&]<typename T>(T*) { gelu<T>(g, impl_->stream); });
        }
        case Epilogue::bias_grad:
            impl_->multiply_batches(g, addend);
            return impl_->reduce_bias(g);
    }
}

void Linalg::set_autotune(bool on) { impl_->autotune = on; }

// ---- decompositions -----------------------------------------------------------------------------

int Linalg::Impl::read(const int* device_value) const {
    int value = 0;
    download(&value, device_value, 1, stream);
    stream.synchronize();
    return value;
}

void Linalg::Impl::check_finite(const char* operation, const float* A, int64_t n) {
    Buffer<int> found(1);
    zero(found.data(), 1, stream);
    launch<find_nonfinite_kernel>({blocks_for(n), kBlock}, stream, found.data(), A, n);
    CHECK(read(found.data()) == 0, "{}: the matrix has NaN or infinite elements", operation);
}

cusolverDnHandle_t Linalg::Impl::solver_handle(const char* operation) {
    if (!solver) {
        check_solver(cusolverDnCreate(&solver), operation);
        check_solver(cusolverDnSetStream(solver, cuda(stream)), operation);
    }
    return solver;
}

// The library wants at least as many rows as columns. Row-major A (m x n) is its matrix A^T = V S U^T (n x m): for n >=
// m its left vectors are V in column-major (n x m), our Vt, and its right ones U^T in column-major, our U. A tall A is
// transposed in memory first, so that the library sees A itself, and both results are transposed back.
void Linalg::svd(float* A, int m, int n, float* U, float* S, float* Vt) {
    CHECK(m > 0 && n > 0, "svd: empty {} x {} matrix", m, n);
    const Stream& stream = impl_->stream;
    impl_->check_finite("svd", A, int64_t{m} * n);
    cusolverDnHandle_t solver = impl_->solver_handle("svd");
    bool tall = m > n;
    int rows = std::max(m, n), columns = std::min(m, n);
    Buffer<float> turned(tall ? int64_t{m} * n : 0), left(tall ? int64_t{m} * n : 0);
    Buffer<float> right(tall ? int64_t{n} * n : 0);
    auto transpose = [&](float* out, const float* in, int in_rows, int in_columns) {
        launch<transpose_kernel>({blocks_for(int64_t{in_rows} * in_columns), kBlock}, stream, out, in, in_rows,
                                 in_columns);
    };
    if (tall) transpose(turned.data(), A, m, n);

    int work_size = 0;
    check_solver(cusolverDnSgesvd_bufferSize(solver, rows, columns, &work_size), "svd");
    Buffer<float> work(work_size);
    Buffer<int> info(1);
    check_solver(
        cusolverDnSgesvd(solver, 'S', 'S', rows, columns, tall ? turned.data() : A, rows, S, tall ? left.data() : Vt,
                         rows, tall ? right.data() : U, columns, work.data(), work_size, nullptr, info.data()),
        "svd");
    if (tall) {
        transpose(U, left.data(), n, m);  // column-major m x n is row-major n x m
        transpose(Vt, right.data(), n, n);
    }
    check_convergence("svd", m, n, impl_->read(info.data()));
}

void Linalg::eigh(float* A, int n, float* w) {
    CHECK(n > 0, "eigh: empty {} x {} matrix", n, n);
    impl_->check_finite("eigh", A, int64_t{n} * n);
    cusolverDnHandle_t solver = impl_->solver_handle("eigh");
    int work_size = 0;
    check_solver(
        cusolverDnSsyevd_bufferSize(solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, A, n, w, &work_size),
        "eigh");
    Buffer<float> work(work_size);
    Buffer<int> info(1);
    check_solver(cusolverDnSsyevd(solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, A, n, w, work.data(),
                                  work_size, info.data()),
                 "eigh");
    check_convergence("eigh", n, n, impl_->read(info.data()));
}

const Stream& Linalg::stream() const { return impl_->stream; }
size_t Linalg::workspace_bytes() const { return static_cast<size_t>(impl_->workspace.size()); }

}  // namespace teon
