// The layout of K matrices M_k (m x n) in one matrix: the mode-i matricization of the tensor [:, :, k] = M_k (Zhang et
// al., arXiv 2601.23261, section 2.2), or its transpose.
//
//   mode 1   [M_1 .. M_K]          m x nK
//   mode 2   [M_1; ..; M_K]        mK x n, the transpose of [M_1^T .. M_K^T] (so is the polar factor)
//   mode 3   rows vec(M_k)         K x mn
//
// Newton-Schulz needs a normalized copy of the momentum in its own precision in any case. unfold()
// (kernels/optimizers/teon.h) writes that copy in this layout and fold_update() reads it, so unfolding costs no
// additional pass over memory.
#pragma once

#include "kernels/optimizers/teon.h"

namespace teon {

struct Unfolding {
    int mode, m, n, K;
    int64_t ld;  // elements from row to row of the unfolded matrix, >= cols()

    // ld is a multiple of `align`. Throws Error unless mode is 1, 2 or 3, the sizes are positive, and rows and columns
    // fit in an int.
    Unfolding(int mode, int m, int n, int K, int align);

    int rows() const;
    int cols() const;
    // Which Gram matrix to compute, of the rows or of the columns: the short side's. For a square unfolding, that of
    // the rows of the paper's matricization.
    bool by_rows() const { return rows() != cols() ? rows() < cols() : mode != 2; }
    int64_t size() const { return rows() * ld; }  // elements of one matrix, including gaps
    SliceLayout layout() const;
};

}  // namespace teon
