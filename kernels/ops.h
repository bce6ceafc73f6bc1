// Every operation, documented once. op_forward / op_backward launch kernels on the given stream and return.
//
// T is float or bf16; sums, statistics and parameter gradients are float. N = B * T rows. All matrices are row-major
// and dense. Outputs are written with `=` unless `+=` is said. Pointers come from Buffer or Arena (256-byte aligned);
// any dimension >= 1 is allowed unless said otherwise. Argument order: outputs, saved state, scratch, inputs,
// dimensions, scalars, stream. The same inputs give the same bits: no float atomics, two-stage reductions of fixed
// shape.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"
#include "runtime/device.h"

namespace teon {

// ---- embedding.cu -------------------------------------------------------------------------------

// out (N, C) = wte[tokens] + wpe[positions]; wte (V, C), wpe (positions, C) or nullptr for none.
template <typename T>
void embedding_forward(T* out, const int* tokens, const int* positions, const T* wte, const T* wpe, int N, int C,
                       const Stream& stream);

// dtable (rows, C) += sum of dout (N, C) over the rows i with ids[i] = row, in the order of `order` (see Batch). Serves
// tokens and positions alike. Rows of dtable that no id names are not touched.
template <typename T>
void embedding_backward(float* dtable, const T* dout, const int* ids, const int* order, int N, int C,
                        const Stream& stream);

// ---- layernorm.cu -------------------------------------------------------------------------------

// out = residual + (x - mean) * rstd * weight + bias, row by row. mean, rstd (N). residual = nullptr: zero.
template <typename T>
void layernorm_forward(T* out, float* mean, float* rstd, const T* residual, const T* x, const T* weight, const T* bias,
                       int N, int C, float eps, const Stream& stream);

// dx (N, C) = dresidual + (d out / d x)^T dout. dresidual = nullptr: zero. dx may alias dresidual or dout. dweight,
// dbias (C) float. dx_sums (C) float: the column sums of dx before it is rounded, the gradient of a bias that was added
// to x; nullptr: not wanted. All three: += if accumulate, else =. scratch: layernorm_backward_scratch_bytes(N, C).
size_t layernorm_backward_scratch_bytes(int N, int C);
template <typename T>
void layernorm_backward(T* dx, float* dweight, float* dbias, float* dx_sums, void* scratch, const T* dout,
                        const T* dresidual, const T* x, const float* mean, const float* rstd, const T* weight, int N,
                        int C, bool accumulate, const Stream& stream);

// ---- rmsnorm.cu ---------------------------------------------------------------------------------

// As layernorm without mean and biases: out = residual + x * rstd * weight, rstd = 1 / sqrt(mean of squares + eps).
template <typename T>
void rmsnorm_forward(T* out, float* rstd, const T* residual, const T* x, const T* weight, int N, int C, float eps,
                     const Stream& stream);
size_t rmsnorm_backward_scratch_bytes(int N, int C);
template <typename T>
void rmsnorm_backward(T* dx, float* dweight, void* scratch, const T* dout, const T* dresidual, const T* x,
                      const float* rstd, const T* weight, int N, int C, bool accumulate, const Stream& stream);

// ---- qk_norm.cu ---------------------------------------------------------------------------------

// A packed row of queries, keys and values as the vectors that are normalized: `queries` of q_width elements, `keys` of
// k_width, and as many values as keys, which are left alone. Of each head: {NH, NKV, HS, HS}; of all heads together:
// {1, 1, NH * HS, NKV * HS}. q_width is a multiple of k_width.
struct QkVectors {
    int queries, keys, q_width, k_width;
    constexpr int normed() const { return queries + keys; }
    constexpr int all() const { return queries + 2 * keys; }
    constexpr int row_width() const { return queries * q_width + 2 * keys * k_width; }
    constexpr int weights() const { return q_width + k_width; }
};

// out = packed qkv x (N, row_width) with each query and key vector normalized, as rmsnorm has it, with the weights
// q_weight (q_width) and k_weight (k_width); values are copied. rstd (N, queries + keys). out must not be x.
template <typename T>
void qk_norm_forward(T* out, float* rstd, const T* x, const T* q_weight, const T* k_weight, int N,
                     const QkVectors& vectors, float eps, const Stream& stream);
// From the gradient of out to that of x, in place. dq_weight (q_width), dk_weight (k_width) float: += if accumulate,
// else =. scratch: qk_norm_backward_scratch_bytes(N, vectors).
size_t qk_norm_backward_scratch_bytes(int N, const QkVectors& vectors);
template <typename T>
void qk_norm_backward(T* dqkv, float* dq_weight, float* dk_weight, void* scratch, const T* x, const float* rstd,
                      const T* q_weight, const T* k_weight, int N, const QkVectors& vectors, bool accumulate,
                      const Stream& stream);

// ---- gelu.cu, relu2.cu, swiglu.cu ---------------------------------------------------------------

// out = gelu_tanh(x) (base/activation.h), n elements. out may alias x.
template <typename T>
void gelu_forward(T* out, const T* x, int64_t n, const Stream& stream);
// dx (N, C) = dout * gelu_tanh'(x). dx may alias dout. dbias (C) float: += if accumulate, else =, the column sums of dx
// before it is rounded, the gradient of a bias that was added to x; nullptr: not wanted. scratch:
// activation_backward_scratch_bytes(N, C).
size_t activation_backward_scratch_bytes(int N, int C);
template <typename T>
void gelu_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                   const Stream& stream);

// out = max(x, 0)^2, n elements. out may alias x.
template <typename T>
void relu2_forward(T* out, const T* x, int64_t n, const Stream& stream);
// dx (N, C) = dout * 2 max(x, 0), otherwise as gelu_backward.
template <typename T>
void relu2_backward(T* dx, float* dbias, void* scratch, const T* x, const T* dout, int N, int C, bool accumulate,
                    const Stream& stream);

// out (N, F) = silu(gate) * up, where gate_up (N, 2F) holds gate in its first F columns and up in the others.
template <typename T>
void swiglu_forward(T* out, const T* gate_up, int N, int F, const Stream& stream);
// dgate_up (N, 2F) from dout (N, F). dgate_up may alias gate_up.
template <typename T>
void swiglu_backward(T* dgate_up, const T* gate_up, const T* dout, int N, int F, const Stream& stream);

// ---- rotary.cu ----------------------------------------------------------------------------------

// cos_sin (positions, HS) float: columns [0, HS/2) the cosines, the others the sines of position * inv_freq[j], where
// inv_freq (HS/2) is on the device. HS even.
void rotary_table(float* cos_sin, const float* inv_freq, int positions, int HS, const Stream& stream);

// Rotates, in place, the NH query and NKV key heads of packed qkv (N, (NH + 2 NKV) * HS); values are left alone.
// Rotate-half convention (Hugging Face's): element j pairs with j + HS/2.
template <typename T>
void rotary_forward(T* qkv, const float* cos_sin, const int* positions, int N, int NH, int NKV, int HS,
                    const Stream& stream);
// The transposed rotation, in place on the gradient of qkv.
template <typename T>
void rotary_backward(T* dqkv, const float* cos_sin, const int* positions, int N, int NH, int NKV, int HS,
                     const Stream& stream);

// ---- attention.cu -------------------------------------------------------------------------------

// Causal self-attention. Head h of the NH query heads uses key/value head h / (NH / NKV). Scores are scaled by
// 1 / sqrt(HS). doc_start (B, T) or nullptr: row t sees keys doc_start[t] <= t' <= t only.
struct AttentionShape {
    int B, T, NH, NKV, HS;
    int64_t qkv_width() const { return static_cast<int64_t>(NH + 2 * NKV) * HS; }
};

// out (B, T, NH * HS); lse (B, NH, T): natural logarithm of the sum of exp of the scaled visible scores.
// qkv (B, T, (NH + 2 NKV) * HS): query heads, then key heads, then value heads.
// Scratch grows linearly with T: scores exist for one block of query rows at a time.
size_t attention_scratch_bytes(const AttentionShape& s, DType dtype);
template <typename T>
void attention_forward(T* out, float* lse, void* scratch, const T* qkv, const int* doc_start, const AttentionShape& s,
                       Context& context);
// dqkv = gradient of qkv, recomputed from lse; deterministic. dqkv must not alias qkv.
template <typename T>
void attention_backward(T* dqkv, void* scratch, const T* dout, const T* qkv, const T* out, const float* lse,
                        const int* doc_start, const AttentionShape& s, Context& context);

// ---- attention_flash.cu -------------------------------------------------------------------------

// The same functions of the same tensors, on tensor cores: bf16, head sizes 64 and 128 only, tensors 16-byte aligned,
// and doc_start must not decrease along T. Scratch is what the backward pass notes of each row; no T x T scores exist.
// lse is that of attention_forward to rounding, so that either backward pass may follow either forward pass.
//
// one_pass_heads = 0: the backward pass takes two passes of seven products together. More: one pass of five products, in
// so many blocks, each of which walks one key/value head after the other and adds dQ in float in scratch of its own; only
// for a head size of 64 (else Error), and where there are documents it is two passes all the same. The number changes no
// bit.
bool flash_attention_supports(const AttentionShape& s, DType dtype);
bool flash_attention_is_fast();  // false on the host, which executes tensor-core instructions one by one
// What one_pass_heads should be on a device with `places` multiprocessors that can hold such a block (0: none can): as
// many, where one pass pays. By docs/gpu_step.md's count it does from T = 1024 on, unless more than an eighth of their
// time would be lost because the last heads do not fill them.
int flash_attention_one_pass_heads(const AttentionShape& s, int places);
int flash_attention_one_pass_places(const DeviceInfo& device);
size_t flash_attention_scratch_bytes(const AttentionShape& s, int one_pass_heads = 0);
void flash_attention_forward(bf16* out, float* lse, const bf16* qkv, const int* doc_start, const AttentionShape& s,
                             const Stream& stream);
void flash_attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                              const float* lse, const int* doc_start, const AttentionShape& s, const Stream& stream,
                              int one_pass_heads = 0);

// ---- attention_decode.cu ------------------------------------------------------------------------

// A cache of keys and values holds `capacity` rows of each sequence: (B, capacity, 2 NKV HS), row t = token t's key
// heads, then its value heads. Rows [begin, begin + s.T) of each sequence = those of packed qkv (B, s.T, (NH + 2 NKV)
// HS).
template <typename T>
void cache_append(T* cache, const T* qkv, const AttentionShape& s, int begin, int capacity, const Stream& stream);
// out (B, NH * HS) = attention of one query row per sequence, of packed qkv (B, (NH + 2 NKV) * HS), to the first `keys`
// rows of the cache, its own included. s.T must be 1. Scores lie in shared memory, which 40000 keys fit.
template <typename T>
void attention_decode(T* out, const T* qkv, const T* cache, const AttentionShape& s, int keys, int capacity,
                      const Stream& stream);

// ---- classifier.cu ------------------------------------------------------------------------------

// Softmax cross-entropy, fused. logits (N, Vp), columns V..Vp-1 are padding: outside the softmax, and their gradient is
// 0. losses (N) = -log softmax(logits)[target], 0 where target < 0, NaN (with its row's gradient) where target >= V. If
// with_gradient, logits are overwritten by grad_scale * (softmax - onehot) (0 where target < 0).
template <typename T>
void classifier(T* logits, float* losses, const int* targets, int N, int V, int Vp, float grad_scale,
                bool with_gradient, const Stream& stream);

// ---- reduce.cu ----------------------------------------------------------------------------------

// out[0] = (accumulate ? out[0] : 0) + sum of x (or of its squares), in float with fixed order. scratch:
// reduce_scratch_bytes().
size_t reduce_scratch_bytes();
void reduce_sum(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream);
void reduce_sum_squares(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream);

// ---- step_control.cu ----------------------------------------------------------------------------

// A series' mean and variance: exact over its first 128 values, then exponentially weighted with that memory. All zero:
// no value yet.
struct SeriesStats {
    float mean = 0, variance = 0;
    int count = 0;  // values seen, up to 128
};

inline constexpr int kSkipNonfinite = 1, kSkipSpike = 2;

// What one optimizer step is allowed to do; lives on the device, so that no step waits for the host. All zero: before
// the first step.
struct StepControl {
    float grad_norm = 0;         // global norm of the gradient before clipping
    float scale = 0;             // what gradients are multiplied by: min(1, clip / norm)
    int skip = 0;                // not 0: no state may change, because loss or gradient was not finite, or a spike
    int updates = 0;             // updates applied so far, this one included: AdamW's t
    float bias_correction1 = 0;  // 1 - beta1^updates
    float bias_correction2 = 0;
    int skipped_in_row = 0;  // steps skipped one after the other, this one included
    float loss_z = 0,
          grad_norm_z = 0;  // in standard deviations of the steps before; 0 for the first 16, inf if not finite
    SeriesStats loss_stats = {}, grad_norm_stats = {};
    float lr_factor = 1;  // of the schedule: what learning rates are multiplied by
};
// Fills *control from norm_squared[0], loss[0] (device) and lr_factor, counting up `updates` unless skipped; no other
// kernel of a step has an argument that changes from step to step. clip = 0: no clipping. spike_limit > 0: a step whose
// loss_z or grad_norm_z is above it is skipped. Values that are not finite are not counted in the statistics, and
// outliers as 4 standard deviations, so that neither blinds them and a lasting change is accepted in time.
void step_control(StepControl* control, const float* norm_squared, const float* loss, float lr_factor, float clip,
                  float spike_limit, float beta1, float beta2, const Stream& stream);

// ---- adamw.cu, lion.cu --------------------------------------------------------------------------

// What updates of each element by itself have in common: g = grad * scale of control is a gradient, r = lr * lr_factor of
// control * lr_scale a step's learning rate, and
//   master = master (1 - r weight_decay) - r u; work = master rounded (work may be nullptr)
// for the rule's direction u. Cautious weight decay (arXiv 2510.12402) decays only where u * master >= 0. Nothing
// changes if control says skip. n elements.
struct ElementStep {
    float lr, lr_scale = 1, weight_decay = 0;
    bool cautious = false;
};

// AdamW (Loshchilov & Hutter, arXiv 1711.05101):
//   m = beta1 m + (1-beta1) g; v = beta2 v + (1-beta2) g^2; u = (m / bc1) / (sqrt(v / bc2) + eps).
template <typename T>
void adamw_update(float* master, T* work, float* m, float* v, const float* grad, const StepControl* control, int64_t n,
                  const ElementStep& step, float beta1, float beta2, float eps, const Stream& stream);

// Lion (Chen et al., arXiv 2302.06675, algorithm 2): u = sign(beta1 m + (1-beta1) g); m = beta2 m + (1-beta2) g.
template <typename T>
void lion_update(float* master, T* work, float* m, const float* grad, const StepControl* control, int64_t n,
                 const ElementStep& step, float beta1, float beta2, const Stream& stream);

// ---- fill.cu ------------------------------------------------------------------------------------

// x (rows, cols) = normal(0, std) in its first logical_rows x logical_cols, 0 elsewhere. The number at (i, j) depends
// only on (seed, tensor, i * logical_cols + j): Philox4x32-10 (Salmon et al. 2011) and Box-Muller.
void fill_normal(float* x, int rows, int cols, int logical_rows, int logical_cols, float std, uint64_t seed,
                 uint64_t tensor, const Stream& stream);
void fill_constant(float* x, int rows, int cols, int logical_rows, int logical_cols, float value, const Stream& stream);
template <typename Dst, typename Src>
void cast(Dst* dst, const Src* src, int64_t n, const Stream& stream);

// ---- teon.cu ------------------------------------------------------------------------------------

// The slices M_k that one batch of orthogonalizations is made of: matrices (m x n) of one shape, K after K for each
// unfolding. What a kernel has to know of a slice lies on the device.
struct Slice {
    int64_t param;        // where it begins in the flat buffers (gradients, master and work weights), in elements
    int64_t state;        // and in the momentum buffer
    float step;           // factor of the learning rate for O_k
    float decay;          // weight decay
    int64_t neurons = 0;  // where the second moments of its rows begin, in the momentum buffer, too (NorMuon)
};
struct SliceBatch {
    const Slice* slices;  // device, count
    int count, m, n;
    bool aligned;  // every param and state offset is a multiple of kVecWidth<float>
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
// root mean square 1. A slice of zeros gets zeros. Nothing if control says skip. scales: neuron_scales_floats(s) floats,
// of which the first count * m are the result.
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

// scales (count, side) = 1 / sqrt(sum over j of |R(i, j)|), 1 where the sum is 0, for count square matrices R (side x side,
// rows ld elements apart): with them as row factors R = X X^T has no eigenvalue above 1 (Prach & Lampert, "Almost-orthogonal
// layers", arXiv 2208.03160, theorem 1).
template <typename T>
void aol_scales(float* scales, const T* R, int count, int side, int64_t ld, const Stream& stream);

// x(i, j) *= row_scales[i] * column_scales[j] for count matrices (rows x cols, rows ld elements apart, gaps untouched), of
// which each has scales of its own. nullptr: 1.
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
