// Dense linear algebra on row-major matrices, by cuBLASLt and cuSOLVER. Inputs may be float, bf16, f16 or, for
// products, FP8; sums are always accumulated in float. On a CPU, results do not depend on the number of threads.
#pragma once

#include <memory>

#include "runtime/cuda/device.h"
#include "runtime/linalg/gemm.h"
#include "runtime/vec.h"

namespace teon {

class Linalg {
public:
    // Use one handle per stream. Owns its workspace and descriptors. Holds a reference to the stream.
    explicit Linalg(const Stream& stream);
    ~Linalg();

    // Computes g. Throws Error that names a shape, dtype or alignment if it is not supported.
    void gemm(const Gemm& g);

    // db (columns, float) = beta * db + the column sums of dy (rows x columns), as computed by Epilogue::bias_grad.
    void bias_gradient(float* db, const Mat& dy, int rows, int columns, float beta);

    // Thin SVD of A (m x n, float, row-major, overwritten): A = U diag(S) Vt; U (m x r), S (r), Vt (r x n), r = min(m,
    // n). Synchronizes the stream. Throws Error if A is not finite or the iteration does not converge.
    void svd(float* A, int m, int n, float* U, float* S, float* Vt);

    // Eigendecomposition of symmetric A (n x n, float): A = Q diag(w) Q^T, w ascending (n); the ROWS of A hold the
    // eigenvectors on return. Synchronizes the stream. Throws Error like svd.
    void eigh(float* A, int n, float* w);

    const Stream& stream() const;
    // The number of kinds of products that cuBLASLt has refused, usually because of their alignment. A slower kernel
    // computes them; a warning on standard error named each once.
    int refused_kinds() const;

private:
    void run(const Gemm& g);  // g has passed check_gemm()
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
