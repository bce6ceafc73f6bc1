// cuSOLVER on the CPU, by LAPACK on one thread, through the C interface that every LAPACK has (LAPACKE).
#include <dlfcn.h>
#include <lapacke.h>

#include <algorithm>
#include <new>

#include "cpu/include/cusolverDn.h"
#include "cpu/one_thread.h"
#include "cpu/stream.h"

struct cusolverDnContext {
    cudaStream_t stream;
};

namespace teon::cpu {
namespace {

// Limits LAPACKs with threads of their own, which ignore OpenMP's setting, to one thread. Otherwise results would
// depend on the number of threads.
void limit_threads() {
    static const bool done = [] {
        for (const char* name : {"openblas_set_num_threads", "MKL_Set_Num_Threads", "bli_thread_set_num_threads"}) {
            if (void* set = dlsym(RTLD_DEFAULT, name)) reinterpret_cast<void (*)(int)>(set)(1);
        }
        return true;
    }();
    (void)done;
}

// Numbers of integers that LAPACK needs in addition to the floats. They follow the floats in the workspace.
int integers_of_svd(int columns) { return 8 * columns; }
int integers_of_eigen(int n) { return 3 + 5 * n; }

lapack_int* integers_after(float* work, int floats) { return reinterpret_cast<lapack_int*>(work + floats); }

template <typename Work>
cusolverStatus_t queue(cusolverDnHandle_t handle, const char* what, Work work) {
    return enqueue(handle->stream, what, work) == cudaSuccess ? CUSOLVER_STATUS_SUCCESS
                                                              : CUSOLVER_STATUS_EXECUTION_FAILED;
}

static_assert(sizeof(lapack_int) == sizeof(int) && sizeof(int) == sizeof(float), "LAPACK must have 32-bit integers");

}  // namespace
}  // namespace teon::cpu

using namespace teon::cpu;

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) {
    limit_threads();
    *handle = new (std::nothrow) cusolverDnContext{};
    return *handle ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_ALLOC_FAILED;
}
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
    delete handle;
    return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
    if (!handle) return CUSOLVER_STATUS_NOT_INITIALIZED;
    handle->stream = stream;
    return CUSOLVER_STATUS_SUCCESS;
}

// Uses sgesdd, which computes the same decomposition as sgesvd several times faster.
cusolverStatus_t cusolverDnSgesvd_bufferSize(cusolverDnHandle_t handle, int m, int n, int* floats) {
    if (!handle) return CUSOLVER_STATUS_NOT_INITIALIZED;
    if (m < n || n < 0) return CUSOLVER_STATUS_INVALID_VALUE;
    float size = 0;
    float unused = 0;
    lapack_int integer = 0;
    const lapack_int info = LAPACKE_sgesdd_work(LAPACK_COL_MAJOR, 'S', m, n, &unused, std::max(m, 1), &unused, &unused,
                                                std::max(m, 1), &unused, std::max(n, 1), &size, -1, &integer);
    // LAPACK returns the size as a float, which may have been rounded down.
    *floats = static_cast<int>(size * (1 + 0x1p-23f)) + 1 + integers_of_svd(n);
    return info == 0 ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INTERNAL_ERROR;
}

// NOLINTNEXTLINE(readability-function-size): the parameters are NVIDIA's
cusolverStatus_t cusolverDnSgesvd(cusolverDnHandle_t handle, signed char jobu, signed char jobvt, int m, int n,
                                  float* A, int lda, float* S, float* U, int ldu, float* VT, int ldvt, float* work,
                                  int floats, float*, int* info) {
    if (!handle) return CUSOLVER_STATUS_NOT_INITIALIZED;
    if (m < n || n < 0 || lda < std::max(1, m) || ldu < std::max(1, m) || ldvt < std::max(1, n) || jobu != 'S' ||
        jobvt != 'S' || floats <= integers_of_svd(n)) {
        return CUSOLVER_STATUS_INVALID_VALUE;
    }
    return queue(handle, "cusolverDnSgesvd", [=] {
        const OneThread one;
        const int space = floats - integers_of_svd(n);
        *info = LAPACKE_sgesdd_work(LAPACK_COL_MAJOR, 'S', m, n, A, lda, S, U, ldu, VT, ldvt, work, space,
                                    integers_after(work, space));
    });
}

cusolverStatus_t cusolverDnSsyevd_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t, cublasFillMode_t, int n,
                                             const float*, int lda, const float*, int* floats) {
    if (!handle) return CUSOLVER_STATUS_NOT_INITIALIZED;
    if (n < 0 || lda < std::max(1, n)) return CUSOLVER_STATUS_INVALID_VALUE;
    float size = 0;
    float unused = 0;
    lapack_int integer = 0;
    const lapack_int info =
        LAPACKE_ssyevd_work(LAPACK_COL_MAJOR, 'V', 'L', n, &unused, lda, &unused, &size, -1, &integer, -1);
    *floats = static_cast<int>(size * (1 + 0x1p-23f)) + 1 + integers_of_eigen(n);
    return info == 0 ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INTERNAL_ERROR;
}

cusolverStatus_t cusolverDnSsyevd(cusolverDnHandle_t handle, cusolverEigMode_t, cublasFillMode_t, int n, float* A,
                                  int lda, float* W, float* work, int floats, int* info) {
    if (!handle) return CUSOLVER_STATUS_NOT_INITIALIZED;
    if (n < 0 || lda < std::max(1, n) || floats <= integers_of_eigen(n)) return CUSOLVER_STATUS_INVALID_VALUE;
    return queue(handle, "cusolverDnSsyevd", [=] {
        const OneThread one;
        const int space = floats - integers_of_eigen(n);
        *info = LAPACKE_ssyevd_work(LAPACK_COL_MAJOR, 'V', 'L', n, A, lda, W, work, space, integers_after(work, space),
                                    integers_of_eigen(n));
    });
}
