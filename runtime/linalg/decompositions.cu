// cuSOLVER is column-major: it sees a row-major matrix as its transpose.
#include "runtime/linalg/decompositions.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "base/integer.h"
#include "runtime/cuda/launch.h"
#include "runtime/simt.h"

namespace teon {

namespace {

const char* reason_of(cusolverStatus_t status) {
    switch (status) {
        case CUSOLVER_STATUS_ALLOC_FAILED:
            return "out of device memory";
        case CUSOLVER_STATUS_NOT_INITIALIZED:
            return "cuSOLVER could not be initialized";
        case CUSOLVER_STATUS_INVALID_VALUE:
            return "invalid argument";
        case CUSOLVER_STATUS_ARCH_MISMATCH:
            return "not supported by this GPU";
        case CUSOLVER_STATUS_EXECUTION_FAILED:
            return "a kernel failed";
        default:
            return "internal error";
    }
}

void check_solver(cusolverStatus_t status, const char* operation) {
    if (status == CUSOLVER_STATUS_SUCCESS) return;
    throw Error(fmt::format("{}: {} (cuSOLVER status {})", operation, reason_of(status), static_cast<int>(status)));
}

constexpr int kBlock = 256;

// out (columns x rows) = in (rows x columns) transposed; both packed.
__global__ void __launch_bounds__(kBlock) transpose_kernel(float* out, const float* in, int rows, int columns) {
    wait_for_earlier_kernels();
    int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
    if (i < int64_t{rows} * columns) out[i % columns * rows + i / columns] = in[i];
}

// *found = 1 if an element is NaN or infinite.
__global__ void __launch_bounds__(kBlock) find_nonfinite_kernel(int* has_nonfinite, const float* x, int64_t n) {
    wait_for_earlier_kernels();
    int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
    if (i < n && x[i] - x[i] != 0.0f) *has_nonfinite = 1;
}

int64_t blocks_for(int64_t n) { return ceil_div(n, kBlock); }

void check_convergence(const char* operation, int m, int n, int info) {
    CHECK(info >= 0, "{}: cuSOLVER rejects argument {} for a {} x {} matrix", operation, -info, m, n);
    CHECK(info == 0, "{}: no convergence for a {} x {} matrix ({} values are missing)", operation, m, n, info);
}

// Returns the buffer, replaced if it has less than n elements. The stream no longer uses the old memory, because each
// decomposition waits for the stream.
float* resized(Buffer<float>& buffer, int64_t n) {
    if (buffer.size() < n) buffer = Buffer<float>(n);
    return buffer.data();
}

}  // namespace

int Decompositions::read_info() const {
    int value = 0;
    download(&value, info_.data(), 1, stream_);
    stream_.synchronize();
    return value;
}

void Decompositions::check_finite(const char* operation, const float* A, int64_t n) {
    zero(info_.data(), 1, stream_);
    launch<find_nonfinite_kernel>({blocks_for(n), kBlock}, stream_, info_.data(), A, n);
    CHECK(read_info() == 0, "{}: the matrix has NaN or infinite elements", operation);
}

cusolverDnHandle_t Decompositions::handle(const char* operation) {
    if (!handle_.get()) {
        cusolverDnHandle_t handle = nullptr;
        check_solver(cusolverDnCreate(&handle), operation);
        handle_ = decltype(handle_)(handle);
    }
    check_solver(cusolverDnSetStream(handle_.get(), static_cast<cudaStream_t>(stream_.handle())), operation);
    return handle_.get();
}

// The library requires at least as many rows as columns. It sees row-major A (m x n) as A^T = V S U^T (n x m). If A is
// not tall (m <= n), its left vectors are V in column-major (n x m), our Vt, and its right vectors are U^T in
// column-major, our U. A tall A is first transposed in memory, so that the library sees A itself, and both results are
// transposed back.
void Decompositions::svd(float* A, int m, int n, float* U, float* S, float* Vt) {
    CHECK(m > 0 && n > 0, "svd: empty {} x {} matrix", m, n);
    check_finite("svd", A, int64_t{m} * n);
    cusolverDnHandle_t solver = handle("svd");
    bool tall = m > n;
    int rows = std::max(m, n);
    int columns = std::min(m, n);
    float* turned = tall ? resized(turned_, int64_t{m} * n) : A;
    float* left_vectors = tall ? resized(left_, int64_t{m} * n) : Vt;
    float* right = tall ? resized(right_, int64_t{n} * n) : U;
    auto transpose = [&](float* out, const float* in, int in_rows, int in_columns) {
        launch<transpose_kernel>({blocks_for(int64_t{in_rows} * in_columns), kBlock}, stream_, out, in, in_rows,
                                 in_columns);
    };
    if (tall) transpose(turned, A, m, n);

    int work_size = 0;
    check_solver(cusolverDnSgesvd_bufferSize(solver, rows, columns, &work_size), "svd");
    float* work = resized(workspace_, work_size);
    check_solver(cusolverDnSgesvd(solver, 'S', 'S', rows, columns, turned, rows, S, left_vectors, rows, right, columns,
                                  work, work_size, nullptr, info_.data()),
                 "svd");
    if (tall) {
        transpose(U, left_vectors, n, m);  // column-major m x n is row-major n x m
        transpose(Vt, right, n, n);
    }
    check_convergence("svd", m, n, read_info());
}

void Decompositions::eigh(float* A, int n, float* w) {
    CHECK(n > 0, "eigh: empty {} x {} matrix", n, n);
    check_finite("eigh", A, int64_t{n} * n);
    cusolverDnHandle_t solver = handle("eigh");
    int work_size = 0;
    check_solver(
        cusolverDnSsyevd_bufferSize(solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, A, n, w, &work_size),
        "eigh");
    float* work = resized(workspace_, work_size);
    check_solver(cusolverDnSsyevd(solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, A, n, w, work, work_size,
                                  info_.data()),
                 "eigh");
    check_convergence("eigh", n, n, read_info());
}

}  // namespace teon
