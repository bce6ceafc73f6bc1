// The part of cuSOLVER that runtime/ uses, for CPUs. Names, enumerators, values and meanings are those of NVIDIA's
// "cuSOLVER" documentation, chapter "cuSolverDN: dense LAPACK Functions" (docs.nvidia.com/cuda/cusolver); functions
// stand there under their own names.
#pragma once

#include "cuda_runtime.h"
#include "cusolverDn_values.h"

#define TEON_ENUMERATOR(name, value) name = value,
enum cusolverStatus_t { CUSOLVER_STATUSES(TEON_ENUMERATOR) };
enum cusolverEigMode_t { CUSOLVER_EIG_MODES(TEON_ENUMERATOR) };
enum cublasFillMode_t { CUBLAS_FILL_MODES(TEON_ENUMERATOR) };
#undef TEON_ENUMERATOR

using cusolverDnHandle_t = struct cusolverDnContext*;

extern "C" {
cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle);
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle);
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream);

// Column-major A (m x n, m >= n, destroyed) = U diag(S) VT: 'S': the first n columns of U and all rows of VT. *info
// (device) = 0, -i: argument i is wrong, i: i superdiagonals did not converge.
cusolverStatus_t cusolverDnSgesvd_bufferSize(cusolverDnHandle_t handle, int m, int n, int* floats);
cusolverStatus_t cusolverDnSgesvd(cusolverDnHandle_t handle, signed char jobu, signed char jobvt, int m, int n,
                                  float* A, int lda, float* S, float* U, int ldu, float* VT, int ldvt, float* work,
                                  int floats, float* rwork, int* info);
// Symmetric A (n x n): eigenvalues W, ascending, and the eigenvectors in A's columns. *info as above.
cusolverStatus_t cusolverDnSsyevd_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t fill,
                                             int n, const float* A, int lda, const float* W, int* floats);
cusolverStatus_t cusolverDnSsyevd(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t fill, int n,
                                  float* A, int lda, float* W, float* work, int floats, int* info);
}  // extern "C"
