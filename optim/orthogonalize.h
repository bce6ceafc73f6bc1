// Orthogonalization of batches of matrices: X = U Sigma V^T becomes U f(Sigma) V^T, where f maps every singular value
// near 1 (Newton-Schulz polynomials, ns_coefficients.h) or to 1 (svd). Each operation on a batch is one strided-batched
// product of Linalg. Transposition flags let tall matrices be processed from their short side.
//
//   standard   R = X X^T;  X <- a X + (b R + c R^2) X, step after step
//   gram       steps on R alone: with q_t(R) = a I + b R + c R^2 the result is Q X, Q = q_T .. q_1, R <- R q_t^2.
//              Faster for long X. In low precision R is recomputed from X every few steps (a restart).
//              As in https://github.com/Dao-AILab/gram-newton-schulz
#pragma once

#include <cstdint>

#include "optim/ns_coefficients.h"
#include "optim/optimizer_options.h"

namespace teon {

struct Context;

struct OrthoMethod {
    Ortho ortho = Ortho::polar_express;
    int ns_steps = 5;  // Newton-Schulz steps
    NsForm form = NsForm::standard;
    DType dtype = DType::f32;   // of the matrices and all intermediate results; float for svd
    double margin() const;      // inputs must have ||X||_F <= 1 / margin
    int row_alignment() const;  // rows begin at multiples of this many elements
};

// Contiguous row-major matrices: row i of matrix b begins at (b * rows + i) * ld.
struct MatrixBatch {
    int count = 0, rows = 0, cols = 0;
    int64_t ld = 0;
    int64_t stride() const { return rows * ld; }
    int64_t size() const { return count * stride(); }
    bool by_rows = rows <= cols;  // compute X X^T, else X^T X
    int side() const { return by_rows ? rows : cols; }
};

// Returns whether the Gram form restarts after this many Newton-Schulz steps on matrices with this short side: it then
// computes X from Q, and R from X. The steep sets in bf16 restart after each step if the side is below kShortSide.
inline constexpr int kShortSide = 128;
bool restarts_after(const OrthoMethod& method, int side, int ns_steps);

// FLOPs of one matrix. Symmetric products count half (X X^T: s^2 l instead of 2 s^2 l). For svd: thin SVD by QR and
// bidiagonalization (Golub & Van Loan, Matrix Computations, section 8.6) and the product U V^T.
double ortho_flops(const OrthoMethod& method, int rows, int cols);

// Returns `requested` unless it is `automatic`; then returns the Gram form if that saves at least a tenth of the FLOPs
// (its products are smaller), else the standard form.
NsForm resolve_form(NsForm requested, const OrthoMethod& method, int rows, int cols);

int64_t ortho_scratch_bytes(const OrthoMethod& method, const MatrixBatch& batch);

// Orthogonalizes X, overwrites it, and returns the address of the result in the same layout: X, or a part of scratch.
// Matrices are independent. Zero matrices, rows and columns stay zero, and so do (up to rounding) all directions that
// are not in X: the result of svd is the partial isometry U V^T over the singular values above rounding. svd waits for
// the device, and throws Error if X is not finite or the iteration fails. Newton-Schulz does not check: a matrix that
// is not finite gives a result that is not finite (slice_scales() reports and removes it beforehand).
void* orthogonalize(void* X, void* scratch, const MatrixBatch& batch, const OrthoMethod& method, Context& context);

}  // namespace teon
