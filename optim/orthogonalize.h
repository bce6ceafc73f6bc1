// Orthogonalization of batches of matrices: X = U Sigma V^T to U f(Sigma) V^T, where f brings every singular value near
// 1 (Newton-Schulz polynomials, ns_coefficients.h) or exactly to it (svd). Written once over Linalg: a batch is one
// strided-batched product per operation, tall matrices are worked on from their short side through transposition flags.
//
//   standard   R = X X^T;  X <- a X + (b R + c R^2) X, step after step
//   gram       the steps on R alone: with q_t(R) = a I + b R + c R^2 the result is Q X, Q = q_T .. q_1, R <- R q_t^2.
//              Wins where X is long; in low precision R has to be computed again from X every few steps (a restart).
//              As in https://github.com/Dao-AILab/gram-newton-schulz
#pragma once

#include <cstdint>

#include "optim/ns_coefficients.h"
#include "optim/optimizer.h"

namespace teon {

struct OrthoMethod {
    Ortho ortho = Ortho::polar_express;
    int steps = 5;
    NsForm form = NsForm::standard;
    DType dtype = DType::f32;  // of the matrices and of everything in between; float for svd
    // Newton-Schulz after AOL preconditioning (Boissin et al., "Turbo-Muon", arXiv 2512.04632): each row of X, on its short
    // side, is divided by the root of its row sum of |X X^T|, which brings every singular value below 1 and nearer to it
    // than the Frobenius norm does. The set's first step is left out: `steps` are those that follow it.
    bool aol = false;
    NsTriple step(int t) const;           // of the steps that are taken, from 0; not for svd
    double margin(int short_side) const;  // inputs must have ||X||_F <= 1 / margin
    int row_alignment() const;            // rows begin at multiples of this many elements
};

// count row-major matrices in one piece: row i of matrix b begins at (b * rows + i) * ld.
struct MatrixBatch {
    int count = 0, rows = 0, cols = 0;
    int64_t ld = 0;
    int64_t stride() const { return rows * ld; }
    int64_t size() const { return count * stride(); }
    int short_side() const { return rows < cols ? rows : cols; }
};

// Whether X is computed anew from the accumulated Q, and R from X, between step and step + 1 (step counts from 1).
bool restarts_after(DType dtype, int step);

// FLOPs of one matrix, symmetric products counted once (2 s^2 l for X X^T counts s^2 l). For svd: thin SVD by QR and
// bidiagonalization (Golub & Van Loan, Matrix Computations, section 8.6) and the product U V^T.
double ortho_flops(const OrthoMethod& method, int rows, int cols);

// The form with fewer FLOPs; gram has to save a tenth, since its products are smaller. asked != automatic is returned.
NsForm resolve_form(NsForm asked, const OrthoMethod& method, int rows, int cols);

int64_t ortho_scratch_bytes(const OrthoMethod& method, const MatrixBatch& batch);

// Orthogonalizes X (overwritten) and returns where the result lies in the same layout: X, or a part of scratch.
// Matrices do not influence each other; a zero matrix stays zero, and so do zero rows and columns and (up to rounding)
// all directions that are not in X: the result of svd is the partial isometry U V^T over the singular values above
// rounding. svd waits for the device and throws Error where X is not finite or the iteration fails; Newton-Schulz does
// neither: what is not finite comes out not finite, in its own matrix only (slice_scales() reports and removes it
// beforehand).
void* orthogonalize(void* X, void* scratch, const MatrixBatch& batch, const OrthoMethod& method, Context& context);

}  // namespace teon
