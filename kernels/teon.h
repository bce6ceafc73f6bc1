// Momentum, unfoldings and updates of the orthogonalizing optimizers. Conventions: kernels/ops.h.
#pragma once

#include <cstdint>

#include "kernels/step_control.h"

namespace teon {

// The slices M_k that one batch of orthogonalizations is made of: matrices (m x n) of one shape, K after K for each
// unfolding. What a kernel has to know of a slice lies on the device.
struct Slice {
    int64_t grad, master, work;  // where it begins in the buffers of gradients, master and working weights, in elements
    int64_t state;               // and in the momentum buffer
    float step;                  // factor of the learning rate for O_k
    float decay;                 // weight decay
    int64_t neurons = 0;         // where the second moments of its rows begin, in the momentum buffer, too (NorMuon)
};
struct SliceBatch {
    const Slice* slices;  // device, count
    int count, m, n;
    bool aligned;  // every offset is a multiple of kVecWidth<float>
    constexpr int64_t size() const { return static_cast<int64_t>(m) * n; }
};
// Where they lie in the unfoldings: (i, j) of slice k of matrix b is Z[b matrix + k slice + i row + j], strides in
// elements.
struct SliceLayout {
    int K;
    int64_t row_stride, slice_stride, matrix_stride;
};

// momentum = mu * momentum + scale * grad, where scale is control's; nothing if control says skip. grad = nullptr: left
// as it is. control = nullptr: scale 1, no skip. partial (count, momentum_parts(s)) = sums of squares, in parts, of
// what is to be orthogonalized: the momentum, or grad * scale + mu * momentum (Nesterov).
int momentum_parts(const SliceBatch& s);
void momentum_update(float* momentum, float* partial, const float* grad, const StepControl* control,
                     const SliceBatch& s, float mu, bool nesterov, const Stream& stream);

// scales (matrices, K) = what each slice is multiplied by so that its unfolding Z has ||Z||_F = 1 / margin:
// 1 / (||Z||_F margin + 1e-7), after each slice was divided by its own norm + 1e-7 if normalize_slices. A matrix that
// is not finite, or whose sum of squares is not, gets the scale 0 and nonfinite[matrix] = 1 (else left as it is); skip:
// scale 0.
void slice_scales(float* scales, int* nonfinite, const float* partial, const StepControl* control, int parts,
                  int matrices, int K, float margin, bool normalize_slices, const Stream& stream);

// Z = scales * momentum (or * (grad * scale + mu * momentum) if grad is given), rounded to T (float, bf16, f16), in the
// layout; elements between columns and row stride are not written. Scale 0 gives 0 whatever the input; scales =
// nullptr: 1.
template <typename T>
void unfold(T* Z, const float* momentum, const float* grad, const float* scales, const StepControl* control,
            const SliceBatch& s, const SliceLayout& layout, float mu, const Stream& stream);

// The factors with which NorMuon multiplies the rows of each slice O of Z (Li et al., arXiv 2510.05491, algorithm 1):
//   v = beta2 v + (1 - beta2) (mean of the row's squares);  scales (count, m) = f / (sqrt(v) + 1e-8),
// where v (m) lies in `state` at the slice's `neurons`, and f gives the slice the norm that O has or, if unit_rms, the
// root mean square 1. A slice of zeros gets zeros. Nothing if control says skip. scales: neuron_scales_floats(s)
// floats, of which the first count * m are the result.
int64_t neuron_scales_floats(const SliceBatch& s);
template <typename T>
void neuron_scales(float* scales, float* state, const T* Z, const StepControl* control, const SliceBatch& s,
                   const SliceLayout& layout, float beta2, bool unit_rms, const Stream& stream);

// master = master (1 - r decay) - r step Z, slice by slice, where r = lr * lr_factor of control; work = master rounded
// (nullptr: none). Nothing if control says skip. Without control r = lr: with master = 0, decay = 0, step = -1 and
// lr = 1 this is the inverse of unfold. Rows of Z are multiplied by row_scales (count, m) first (nullptr: 1). cautious:
// only weights that the update moves to zero decay, as in ElementStep.
template <typename T, typename W>
void fold_update(float* master, W* work, const T* Z, const StepControl* control, const SliceBatch& s,
                 const SliceLayout& layout, float lr, const Stream& stream, const float* row_scales = nullptr,
                 bool cautious = false);

// scales (count, side) = 1 / sqrt(sum over j of |R(i, j)|), 1 where the sum is 0, for count square matrices R (side x
// side, rows ld elements apart): with them as row factors R = X X^T has no eigenvalue above 1 (Prach & Lampert,
// "Almost-orthogonal layers", arXiv 2208.03160, theorem 1).
template <typename T>
void aol_scales(float* scales, const T* R, int count, int side, int64_t ld, const Stream& stream);

// x(i, j) *= row_scales[i] * column_scales[j] for count matrices (rows x cols, rows ld elements apart, gaps untouched),
// of which each has scales of its own. nullptr: 1.
template <typename T>
void scale_rows_columns(T* x, const float* row_scales, const float* column_scales, int count, int rows, int cols,
                        int64_t ld, const Stream& stream);

// out = x + a I for count square matrices (side x side, rows ld elements apart, gaps included) of float, bf16 or f16.
template <typename T>
void add_identity(T* out, const T* x, float a, int count, int side, int64_t ld, const Stream& stream);

// Columns j of U (rows x r) with S[j] <= tolerance * S[0] (S descending) become 0: directions that are not in the
// matrix.
void drop_null_directions(float* U, const float* S, int rows, int r, float tolerance, const Stream& stream);

}  // namespace teon
