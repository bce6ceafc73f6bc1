// The part of cuSOLVER that runtime/ uses, for CPUs. Names, enumerators, values and meanings are those of NVIDIA's
// "cuSOLVER" documentation, chapter "cuSolverDN: dense LAPACK Functions" (docs.nvidia.com/cuda/cusolver), which has a
// section for each function.
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

// Computes A = U diag(S) VT, column-major. A (m x n, m >= n) is destroyed. With 'S' U has its first n columns and VT
// all rows. *info (on the device) is 0 on success, -i if argument i is wrong, i if i superdiagonals did not converge.
cusolverStatus_t cusolverDnSgesvd_bufferSize(cusolverDnHandle_t handle, int m, int n, int* floats);
cusolverStatus_t cusolverDnSgesvd(cusolverDnHandle_t handle, signed char jobu, signed char jobvt, int m, int n,
                                  float* A, int lda, float* S, float* U, int ldu, float* VT, int ldvt, float* work,
                                  int floats, float* rwork, int* info);
// Computes the eigenvalues W, ascending, of the symmetric A (n x n), and its eigenvectors in A's columns. *info as
// above.
cusolverStatus_t cusolverDnSsyevd_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t fill,
                                             int n, const float* A, int lda, const float* W, int* floats);
cusolverStatus_t cusolverDnSsyevd(cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t fill, int n,
                                  float* A, int lda, float* W, float* work, int floats, int* info);
}  // extern "C"
