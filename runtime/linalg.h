// Dense linear algebra on row-major matrices, by cuBLASLt and cuSOLVER. Inputs may be float, bf16, f16 or, of products,
// FP8; sums are always taken in float. Results do not depend on a CPU's number of threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "runtime/algorithm_search.h"
#include "runtime/device.h"
#include "runtime/gemm.h"
#include "runtime/vec.h"

namespace teon {

// The library's symmetric products of this size and depth are computed in triangles.
inline constexpr int kSymmetricSplit = kGpu ? 1024 : 256;

class Linalg {
public:
    // One handle per stream; owns its workspace, descriptors and algorithm cache. Holds a reference to the stream.
    explicit Linalg(const Stream& stream);
    ~Linalg();
    Linalg(Linalg&&) noexcept;
    Linalg& operator=(Linalg&&) noexcept;

    // Throws Error on a shape, dtype or alignment that it cannot do, naming it.
    void gemm(const Gemm& g);

    // db (columns, float) = beta * db + the column sums of dy (rows x columns), as Epilogue::bias_grad leaves them.
    void bias_gradient(float* db, const Mat& dy, int rows, int columns, float beta);

    // From now on the first gemm of a kind (outside graph capture) times the algorithms that cuBLASLt proposes (and, of
    // a symmetric product, our own kernel), keeps the fastest and calls `chosen`, instead of taking the first proposal.
    // Trials leave C as it was: where it is added to, they write to other memory, which is freed at once. Of a product
    // in `known` (algorithm by product, of earlier choices on such a device with such a library) that algorithm is
    // taken without a trial, if it is still proposed. The last bits of results follow the choices: the same ones give
    // the same bits.
    void search_algorithms(std::map<std::string, std::string> known,
                           std::function<void(const AlgorithmChoice&)> chosen);

    // Thin SVD of A (m x n, float, row-major, overwritten): A = U diag(S) Vt; U (m x r), S (r), Vt (r x n), r = min(m,
    // n). Synchronizes the stream. Throws Error if A is not finite or the iteration does not converge.
    void svd(float* A, int m, int n, float* U, float* S, float* Vt);

    // Eigendecomposition of symmetric A (n x n, float): A = Q diag(w) Q^T, w ascending (n); the ROWS of A hold the
    // eigenvectors on return. Synchronizes the stream. Throws Error like svd.
    void eigh(float* A, int n, float* w);

    const Stream& stream() const;
    size_t workspace_bytes() const;
    // Kinds of products that cuBLASLt has refused, for their alignment as a rule: a slower kernel computes them. Each
    // was named on standard error once.
    int refused_kinds() const;

private:
    void run(const Gemm& g);  // a checked one
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
