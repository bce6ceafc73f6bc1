// Dense linear algebra on row-major matrices, by cuBLASLt and cuSOLVER. Inputs may be float, bf16 or f16; sums are
// always taken in float. Results do not depend on a CPU's number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/dtype.h"
#include "runtime/device.h"

namespace teon {

// A row-major matrix (or the first of a batch): element (i, j) is data[i * ld + j].
// batch strides are in elements; outer moves slowest.
struct Mat {
    void* data = nullptr;
    DType dtype = DType::f32;
    int64_t ld = 0;
    int64_t stride_inner = 0;
    int64_t stride_outer = 0;
};
template <typename T>
Mat mat(const T* data, int64_t ld, int64_t stride_inner = 0, int64_t stride_outer = 0) {
    return {const_cast<T*>(data), dtype_of<T>, ld, stride_inner, stride_outer};
}

// The library's symmetric products of this size and depth are computed in triangles.
#if defined(TEON_CUDA) || defined(__CUDACC__) || defined(TEON_UNKIND)
inline constexpr int kSymmetricSplit = 1024;
#else
inline constexpr int kSymmetricSplit = 256;
#endif

enum class Epilogue {
    none,
    bias,       // C = op(A) op(B) + bias, bias added to every row
    gelu,       // aux = op(A) op(B), + bias if there is one; C = gelu_tanh(aux) (base/activation.h)
    dgelu,      // C = op(A) op(B) * gelu_tanh'(aux)
    bias_grad,  // also bias[j] (float) = beta * bias[j] + sum over k of op(A)(j, k): with A = dY^T gives dY's column
                // sums; alpha must be 1
};

// C (M x N) = alpha * op(A) (M x K) * op(B) (K x N) + beta * C, then the epilogue.
struct Gemm {
    int M = 0, N = 0, K = 0;
    bool trans_a = false, trans_b = false;  // A stored K x M; B stored N x K (a linear layer's weight)
    Mat A = {}, B = {}, C = {};
    float alpha = 1.0f, beta = 0.0f;  // beta = 0 never reads C (NaN in C does not spread)
    int batch_inner = 1, batch_outer = 1;
    Epilogue epilogue = Epilogue::none;  // without batches only
    Mat bias = {};                       // bias, gelu: (N) of C's dtype; bias_grad: (M) of float
    // gelu, dgelu: (M x N) of C's dtype, overlaps nothing; its rows begin at multiples of 8 elements, as cuBLASLt demands.
    // Whether gelu sees the sum or what is rounded of it, and the last bits of both functions, are the library's choice.
    Mat aux = {};
    Mat addend = {};  // of C's dtype, may be A or B but not overlap C: beta * addend instead of beta * C
    // C is known to be symmetric (M = N, e.g. A A^T; the addend too), and is so to the last bit: what is below the diagonal
    // is mirrored. Where it pays, only that half is computed.
    bool symmetric = false;
};

// What a search for algorithms found for one kind of product.
struct AlgorithmChoice {
    std::string product;    // all that the choice may depend on: sizes, types, strides, alignments, epilogue
    std::string algorithm;  // the library's, in hexadecimal digits; of a symmetric product: by whom
    double ms = 0;          // it took
    double first_ms = 0;    // the library's first proposal took; of a symmetric product: the library
};

class Linalg {
public:
    // One handle per stream; owns its workspace, descriptors and algorithm cache. Holds a reference to the stream.
    explicit Linalg(const Stream& stream);
    ~Linalg();
    Linalg(Linalg&&) noexcept;
    Linalg& operator=(Linalg&&) noexcept;

    // Throws Error on a shape, dtype or alignment that it cannot do, naming it.
    void gemm(const Gemm& g);

    // From now on the first gemm of a kind (outside graph capture) times the algorithms that cuBLASLt proposes (and, of a
    // symmetric product, our own kernel), keeps the fastest and calls `chosen`, instead of taking the first proposal. Trials
    // leave C as it was: where it is added to, they write to other memory, which is freed at once. Of a product in `known`
    // (algorithm by product, of earlier choices on such a device with such a library) that algorithm is taken without a
    // trial, if it is still proposed. The last bits of results follow the choices: the same ones give the same bits.
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
    // Kinds of products that cuBLASLt has refused, for their alignment as a rule: a slower kernel computes them. Each was
    // named on standard error once.
    int refused_kinds() const;

private:
    void run(const Gemm& g);  // a checked one
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
