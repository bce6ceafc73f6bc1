// Momentum, unfoldings and updates of the orthogonalizing optimizers. Conventions: kernels/ops.h.
//
// `control` may be nullptr: then the gradients' scale and the learning rate's factor are 1 and nothing is skipped. If
// control->skip is not 0, momentum, second moments and weights stay as they are.
#pragma once

#include <cstdint>

#include "kernels/step_control.h"

namespace teon {

// One slice M_k of a stack. Offsets are in elements.
struct Slice {
    int64_t grad, master, work;  // offsets in the buffers of gradients, master weights and working weights
    int64_t state;               // offset in the momentum buffer
    UpdateRate rate;             // its lr_scale includes the factor of O_k
    int64_t neurons = 0;         // offset of the second moments of its neurons, also in the momentum buffer (NorMuon)
};
// The slices of one batch of orthogonalizations: matrices (m x n) of one shape, K consecutive ones for each unfolding.
struct SliceBatch {
    const Slice* slices;  // device, count
    int count, m, n;
    bool aligned;                      // every offset is a multiple of kVecWidth<float>
    int logical_m = m, logical_n = n;  // without padding, whose elements are 0: means are over these
    bool by_columns = false;           // NorMuon's neurons are columns, not rows
    constexpr int neurons() const { return by_columns ? n : m; }
    constexpr int64_t size() const { return static_cast<int64_t>(m) * n; }
    constexpr int64_t logical_size() const { return static_cast<int64_t>(logical_m) * logical_n; }
};
// The places of slices in the unfoldings: element (i, j) of slice k of matrix b is Z[b matrix_stride + k slice_stride +
// i row_stride + j]. Strides are in elements.
struct SliceLayout {
    int K;
    int64_t row_stride, slice_stride, matrix_stride;
};

// What Nesterov's momentum orthogonalizes, with M the momentum as a sum and t the update, counted from 1:
//   usual           g + mu M (g + mu times the average in proportion, if M is an average)
//   bias_corrected  mu times the average of t + 1 updates plus (1 - mu) g, each divided by its bias: optax
//   ema             g plus the average, (1 - mu) M: heavyball
enum class NesterovForm { usual, bias_corrected, ema };

// The momentum of a step. In the first `warmup` updates it rises linearly from `start` to mu.
struct MomentumRule {
    float mu = 0;
    bool nesterov = false;
    NesterovForm form = NesterovForm::usual;
    float start = 0;
    int warmup = 0;
};

// With the rule's factors of this update, M = keep M + add scale grad, where scale = control->scale; M is unchanged if
// grad is nullptr. add is 1; while the momentum rises it is (1 - keep) / (1 - mu), which keeps M in proportion to the
// average. partial (count, momentum_parts(s)) = partial sums of squares of the matrices to orthogonalize: M, or with
// Nesterov scale grad + ahead M. partial is not written if control says skip.
int momentum_parts(const SliceBatch& s);
void momentum_update(float* momentum, float* partial, const float* grad, const StepControl* control,
                     const SliceBatch& s, const MomentumRule& rule, const Stream& stream);

// scales (matrices, K) = the factors of slices with which each unfolding Z has ||Z||_F = 1 / margin:
// 1 / (||Z||_F margin + 1e-7). If normalize_slices, each slice is first divided by its own norm + 1e-7. If the sum of
// squares of a matrix is not finite, its scales are 0 and nonfinite[matrix] = 1, which is otherwise left unchanged. If
// control says skip, all scales are 0.
void slice_scales(float* scales, int* nonfinite, const float* partial, const StepControl* control, int parts,
                  int matrices, int K, float margin, bool normalize_slices, const Stream& stream);

// Z = scales * momentum, or scales * (grad * scale + ahead * momentum) if grad is not nullptr, rounded to T (float,
// bf16 or f16) and placed by `layout`. Elements between the columns and the row stride are not written. A scale of 0
// gives 0 whatever the input; scales = nullptr means 1.
// row_factors (count, m), if not nullptr, multiply the rows.
template <typename T>
void unfold(T* Z, const float* momentum, const float* grad, const float* scales, const StepControl* control,
            const SliceBatch& s, const SliceLayout& layout, const MomentumRule& rule, const Stream& stream,
            const float* row_factors = nullptr);

// factors (count, m) = what gives each row of a matrix that unfold() would read the norm ||.||_F / sqrt(m), so that the
// matrix keeps its norm (MuonEq, arXiv 2603.28254); 0 for rows of zeros. partial: as momentum_update() left it.
void equal_rows(float* factors, const float* momentum, const float* grad, const float* partial,
                const StepControl* control, const SliceBatch& s, const MomentumRule& rule, const Stream& stream);

// NorMuon's normalization of a slice (Li et al., arXiv 2510.05491, algorithm 1).
struct NeuronRule {
    float beta2;
    bool unit_rms;     // makes the slice's root mean square 1; else its norm is kept
    bool renormalize;  // as if the slice's norm was the root of its short side (Muon+, arXiv 2602.21545)
};
// Computes the factors by which the neurons, rows or columns, of each slice O of Z are multiplied:
//   v = beta2 v + (1 - beta2) (mean of the neuron's squares);  scales (count, neurons) = f / (sqrt(v) + 1e-8),
// where v is in `state` at the slice's offset `neurons`, and f sets the slice's norm. Means are over the logical sizes.
// The factors of a slice of zeros are 0. scales has neuron_scales_floats(s) floats, of which the first count *
// s.neurons() are the result; nothing is written if control says skip.
int64_t neuron_scales_floats(const SliceBatch& s);
template <typename T>
void neuron_scales(float* scales, float* state, const T* Z, const StepControl* control, const SliceBatch& s,
                   const SliceLayout& layout, const NeuronRule& rule, const Stream& stream);

// Updates the weights of each slice by its UpdateRate (kernels/step_control.h); the direction is Z, whose neurons are
// first multiplied by neuron_scales (count, s.neurons()), unless that is nullptr. Without control, with master = 0,
// lr = 1, lr_scale = -1 and no decay, this is the inverse of unfold.
template <typename T, typename W>
void fold_update(float* master, W* work, const T* Z, const StepControl* control, const SliceBatch& s,
                 const SliceLayout& layout, const Stream& stream, const float* neuron_scales = nullptr);

// out = x + a I for `count` square matrices (side x side, rows ld elements apart) of float, bf16 or f16. The gaps
// between rows are copied.
template <typename T>
void add_identity(T* out, const T* x, float a, int count, int side, int64_t ld, const Stream& stream);

// Sets the columns j of U (rows x r) with S[j] <= tolerance * S[0] to 0, S (r) descending: their directions are not in
// the matrix.
void drop_null_directions(float* U, const float* S, int rows, int r, float tolerance, const Stream& stream);

}  // namespace teon
