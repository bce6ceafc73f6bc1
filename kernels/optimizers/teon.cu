// The parts of Muon and Teon other than matrix products: momentum with the Frobenius norms that Newton-Schulz starts
// from, the unfolding of a stack's slices, and the update that folds the result back into the weights (Zhang et al.,
// arXiv 2601.23261, algorithm 1). All kernels are memory-bound and read and write a slice once. Their grids are
// (parts of a slice, slices).
#include <limits>

#include "kernels/common.h"
#include "kernels/optimizers/teon.h"
#include "kernels/optimizers/weight_update.h"

namespace teon {

namespace {

constexpr float kEpsilon = 1e-7f;  // avoids 0 / 0; as in Keller Jordan's Muon
constexpr float kNeuronEpsilon = 1e-8f;
constexpr int kRowsBlock = 128;  // threads of kernels with a warp per row

__device__ __forceinline__ bool skips(const StepControl* control) { return control && control->skip; }
__device__ __forceinline__ float grad_scale(const StepControl* control) { return control ? control->scale : 1.0f; }

// The rule's factors in one update. control may be nullptr: then the momentum does not rise, and t is 1.
struct MomentumFactors {
    float keep, add, ahead;
};
__device__ __forceinline__ float power(float x, int n) {
    float result = 1.0f;
    for (; n > 0; n /= 2) {
        if (n % 2 != 0) result *= x;
        x *= x;
    }
    return result;
}
__device__ __forceinline__ MomentumFactors momentum_factors(const MomentumRule& rule, const StepControl* control) {
    const int t = control ? control->updates : 1;
    float mu = rule.mu;
    float add = 1.0f;
    if (control && t <= rule.warmup) {
        mu = fmaf(mu - rule.start, static_cast<float>(t - 1) / static_cast<float>(rule.warmup), rule.start);
        add = (1.0f - mu) / (1.0f - rule.mu);
    }
    float ahead = mu / add;
    if (rule.form == NesterovForm::ema) ahead = 1.0f - rule.mu;
    if (rule.form == NesterovForm::bias_corrected) ahead *= (1.0f - power(mu, t)) / (1.0f - power(mu, t + 1));
    return {mu, add, ahead};
}

// Calls f(Constant<W>{}) with the widest access for which runs of `run` elements of a slice start aligned; run = 0 if
// accesses may cross the ends of rows.
template <typename F>
void for_slice_width(const SliceBatch& s, int64_t run, F f) {
    constexpr int W = kVecWidth<float>;
    at_width<W>(s.aligned && run % W == 0, f);
}

template <int W>
LaunchConfig slice_grid(const SliceBatch& s) {
    return {dim3(static_cast<unsigned>(flat_blocks<W>(s.size())), static_cast<unsigned>(s.count)), kFlatBlock};
}

template <int W>
__global__ void __launch_bounds__(kFlatBlock)
    momentum_update_kernel(float* momentum, float* partial, const float* grad, const StepControl* control, SliceBatch s,
                           MomentumRule rule) {
    wait_for_earlier_kernels();
    if (skips(control)) return;
    const Slice slice = s.slices[blockIdx.y];
    const float scale = grad_scale(control);
    const MomentumFactors factor = momentum_factors(rule, control);
    const float add = factor.add * scale;
    float sum = 0.0f;
    for_each_vec<W>(s.size(), [&]<int w>(Constant<w>, int64_t i) {
        auto m = load_floats<w>(momentum + slice.state + i);
        auto u = m;
        if (grad) {
            auto g = load_floats<w>(grad + slice.grad + i);
            FOR_VEC(k, w) {
                m[k] = fmaf(factor.keep, m[k], add * g[k]);
                u[k] = rule.nesterov ? fmaf(factor.ahead, m[k], scale * g[k]) : m[k];
            }
            store_vec(momentum + slice.state + i, m);
        }
        FOR_VEC(k, w) u[k] *= u[k];
        sum += sum_of(u);
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = sum;
}

// One warp per matrix.
__global__ void __launch_bounds__(32)
    slice_scales_kernel(float* scales, int* nonfinite, const float* partial, const StepControl* control, int parts,
                        int K, float margin, bool normalize_slices) {
    wait_for_earlier_kernels();
    const int matrix = static_cast<int>(blockIdx.x);
    const int lane = static_cast<int>(threadIdx.x);
    float* scale = scales + int64_t{matrix} * K;
    if (skips(control)) {
        for (int k = lane; k < K; k += 32) scale[k] = 0.0f;
        return;
    }
    float total = 0.0f;  // ||Z||_F^2
    for (int k = 0; k < K; ++k) {
        const float* parts_of_slice = partial + (int64_t{matrix} * K + k) * parts;
        float sum = 0.0f;
        for (int p = lane; p < parts; p += 32) sum += parts_of_slice[p];
        sum = warp_sum(sum);
        const float norm = sqrtf(sum);
        const float factor = normalize_slices ? 1.0f / (norm + kEpsilon) : 1.0f;
        total += norm * factor * norm * factor;
        if (lane == 0) scale[k] = factor;
    }
    const bool finite = total <= std::numeric_limits<float>::max();
    const float factor = finite ? 1.0f / (sqrtf(total) * margin + kEpsilon) : 0.0f;
    if (lane != 0) return;
    for (int k = 0; k < K; ++k) scale[k] = finite ? scale[k] * factor : 0.0f;
    if (!finite) nonfinite[matrix] = 1;
}

// The offset of element e of slice `index` in the unfoldings.
__device__ __forceinline__ int64_t place_of(const SliceLayout& layout, int index, int64_t e, int n) {
    const unsigned i = static_cast<unsigned>(e) / static_cast<unsigned>(n);
    const unsigned j = static_cast<unsigned>(e) - i * static_cast<unsigned>(n);
    return index / layout.K * layout.matrix_stride + index % layout.K * layout.slice_stride + i * layout.row_stride + j;
}

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock)
    unfold_kernel(T* Z, const float* momentum, const float* grad, const float* scales, const StepControl* control,
                  SliceBatch s, SliceLayout layout, MomentumRule rule, const float* row_factors) {
    wait_for_earlier_kernels();
    const int index = static_cast<int>(blockIdx.y);
    const Slice slice = s.slices[index];
    const float factor = scales ? scales[index] : 1.0f;
    const float scale = grad_scale(control);
    const float ahead = momentum_factors(rule, control).ahead;
    for_each_vec<W>(s.size(), [&]<int w>(Constant<w>, int64_t e) {
        auto x = load_floats<w>(momentum + slice.state + e);
        if (grad) {
            auto g = load_floats<w>(grad + slice.grad + e);
            FOR_VEC(k, w) x[k] = fmaf(ahead, x[k], scale * g[k]);
        }
        const float of_row = row_factors ? factor * row_factors[int64_t{index} * s.m + e / s.n] : factor;
        FOR_VEC(k, w) x[k] = factor == 0.0f ? 0.0f : of_row * x[k];
        store_floats(Z + place_of(layout, index, e, s.n), x);
    });
}

template <typename T, typename WorkT, int W>
__global__ void __launch_bounds__(kFlatBlock)
    fold_update_kernel(float* master, WorkT* work, const T* Z, const StepControl* control, SliceBatch s,
                       SliceLayout layout, const float* neuron_scales) {
    wait_for_earlier_kernels();
    if (skips(control)) return;
    const int index = static_cast<int>(blockIdx.y);
    const Slice slice = s.slices[index];
    const WeightUpdate update = weight_update(slice.rate, control);
    for_each_vec<W>(s.size(), [&]<int w>(Constant<w>, int64_t e) {
        auto x = load_floats<w>(master + slice.master + e);
        auto o = load_floats<w>(Z + place_of(layout, index, e, s.n));
        float scale = update.rate;
        if (neuron_scales != nullptr && s.by_columns) {
            FOR_VEC(k, w) o[k] *= neuron_scales[int64_t{index} * s.n + e % s.n + k];
        } else if (neuron_scales != nullptr) {
            scale *= neuron_scales[int64_t{index} * s.m + e / s.n];
        }
        FOR_VEC(k, w) {
            const float delta = scale * o[k];
            x[k] = fmaf(update.decay_factor(x[k], delta), x[k], -delta);
        }
        store_vec(master + slice.master + e, x);
        if (work) store_floats(work + slice.work + e, x);
    });
}

// The number of this warp's row or column, and its place among the blocks that cover `lines` of them.
__device__ __forceinline__ int line_of_warp() {
    return static_cast<int>(blockIdx.x * (kRowsBlock / 32) + threadIdx.x / 32);
}
LaunchConfig line_grid(int lines, int slices) {
    return {dim3(static_cast<unsigned>(ceil_div(lines, kRowsBlock / 32)), static_cast<unsigned>(slices)), kRowsBlock};
}

// One warp per row.
__global__ void __launch_bounds__(kRowsBlock)
    equal_rows_kernel(float* factors, const float* momentum, const float* grad, const float* partial,
                      const StepControl* control, SliceBatch s, int parts, MomentumRule rule) {
    wait_for_earlier_kernels();
    if (skips(control)) return;
    const int index = static_cast<int>(blockIdx.y);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int i = line_of_warp();
    if (i >= s.m) return;
    const Slice slice = s.slices[index];
    const float scale = grad_scale(control);
    const float ahead = momentum_factors(rule, control).ahead;
    float row = 0.0f;
    float all = 0.0f;
    for (int j = lane; j < s.n; j += 32) {
        const int64_t e = int64_t{i} * s.n + j;
        const float m = momentum[slice.state + e];
        const float u = grad ? fmaf(ahead, m, scale * grad[slice.grad + e]) : m;
        row = fmaf(u, u, row);
    }
    for (int p = lane; p < parts; p += 32) all += partial[int64_t{index} * parts + p];
    row = warp_sum(row);
    all = warp_sum(all);
    const float factor = row > 0.0f ? sqrtf(all / (static_cast<float>(s.logical_m) * row)) : 0.0f;
    if (lane == 0) factors[int64_t{index} * s.m + i] = factor;
}

// One warp per neuron: scales (2, count, neurons)[1] = the sum of its squares.
template <typename T>
__global__ void __launch_bounds__(kRowsBlock)
    neuron_sums_kernel(float* scales, const T* Z, const StepControl* control, SliceBatch s, SliceLayout layout) {
    wait_for_earlier_kernels();
    if (skips(control)) return;
    const int index = static_cast<int>(blockIdx.y);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int i = line_of_warp();
    if (i >= s.neurons()) return;
    const T* neuron = Z + place_of(layout, index, s.by_columns ? i : int64_t{i} * s.n, s.n);
    const int64_t stride = s.by_columns ? layout.row_stride : 1;
    const int length = s.by_columns ? s.m : s.n;
    float sum = 0.0f;
    for (int j = lane; j < length; j += 32) {
        const float o = static_cast<float>(neuron[j * stride]);
        sum = fmaf(o, o, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) scales[(int64_t{s.count} + index) * s.neurons() + i] = sum;
}

// One block per slice: the moments, and the factors of the neurons, which keep the norm of the slice or set it.
__global__ void __launch_bounds__(kFlatBlock)
    neuron_scales_kernel(float* scales, float* state, const StepControl* control, SliceBatch s, NeuronRule rule) {
    wait_for_earlier_kernels();
    if (skips(control)) return;
    const int neurons = s.neurons();
    float* factors = scales + int64_t{blockIdx.x} * neurons;
    const float* sums = factors + int64_t{s.count} * neurons;
    float* v = state + s.slices[blockIdx.x].neurons;
    const float length = static_cast<float>(s.by_columns ? s.logical_m : s.logical_n);
    const float side = static_cast<float>(s.logical_m < s.logical_n ? s.logical_m : s.logical_n);
    float before = 0.0f;
    float after = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < neurons; i += kFlatBlock) before += sums[i];
    before = block_sum(before);
    const float renormalized = rule.renormalize && before > 0.0f ? side / before : 1.0f;  // of squares
    for (int i = static_cast<int>(threadIdx.x); i < neurons; i += kFlatBlock) {
        v[i] = fmaf(rule.beta2, v[i], (1.0f - rule.beta2) * (renormalized * sums[i] / length));
        factors[i] = 1.0f / (sqrtf(v[i]) + kNeuronEpsilon);
        const float square = sums[i] * factors[i] * factors[i];
        after += square;
    }
    after = block_sum(after);
    const float target = rule.unit_rms ? static_cast<float>(s.logical_size()) : renormalized * before;
    const float factor = after > 0.0f ? sqrtf(target / after) : 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < neurons; i += kFlatBlock) factors[i] *= factor;
}

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock)
    add_identity_kernel(T* out, const T* x, float a, int side, int64_t ld, int64_t n) {
    wait_for_earlier_kernels();
    for_each_vec<W>(n, [=]<int w>(Constant<w>, int64_t e) {
        auto v = load_floats<w>(x + e);
        const int64_t row = e / ld;
        const int64_t column = e - row * ld;
        const int64_t diagonal = row % side - column;
        FOR_VEC(k, w) v[k] += k == diagonal ? a : 0.0f;
        store_floats(out + e, v);
    });
}

__global__ void __launch_bounds__(kFlatBlock)
    drop_null_directions_kernel(float* U, const float* S, int64_t n, int r, float tolerance) {
    wait_for_earlier_kernels();
    for_each_vec<1>(n, [=](auto, int64_t i) {
        if (!(S[i % r] > tolerance * S[0])) U[i] = 0.0f;
    });
}

// Indices within a slice have 32 bits, and the number of slices is the grid's second extent.
void check_slices(const SliceBatch& s) {
    CHECK(s.m > 0 && s.n > 0 && s.size() <= 0x7fffffff, "a slice of {} x {} has more than 2^31 - 1 elements", s.m, s.n);
    CHECK(s.count >= 0 && s.count <= 65535, "a batch of {} slices; the most is 65535", s.count);
}

}  // namespace

int momentum_parts(const SliceBatch& s) {
    int64_t parts = 0;
    for_slice_width(s, 0, [&]<int W>(Constant<W>) { parts = flat_blocks<W>(s.size()); });
    return static_cast<int>(parts);
}

void momentum_update(float* momentum, float* partial, const float* grad, const StepControl* control,
                     const SliceBatch& s, const MomentumRule& rule, const Stream& stream) {
    check_slices(s);
    for_slice_width(s, 0, [&]<int W>(Constant<W>) {
        launch<momentum_update_kernel<W>>(slice_grid<W>(s), stream, momentum, partial, grad, control, s, rule);
    });
}

void slice_scales(float* scales, int* nonfinite, const float* partial, const StepControl* control, int parts,
                  int matrices, int K, float margin, bool normalize_slices, const Stream& stream) {
    launch<slice_scales_kernel>({matrices, 32}, stream, scales, nonfinite, partial, control, parts, K, margin,
                                normalize_slices);
}

template <typename T>
void unfold(T* Z, const float* momentum, const float* grad, const float* scales, const StepControl* control,
            const SliceBatch& s, const SliceLayout& layout, const MomentumRule& rule, const Stream& stream,
            const float* row_factors) {
    check_slices(s);
    for_slice_width(s, layout.row_stride % kVecWidth<float> == 0 ? s.n : 1, [&]<int W>(Constant<W>) {
        launch<unfold_kernel<T, W>>(slice_grid<W>(s), stream, Z, momentum, grad, scales, control, s, layout, rule,
                                    row_factors);
    });
}

void equal_rows(float* factors, const float* momentum, const float* grad, const float* partial,
                const StepControl* control, const SliceBatch& s, const MomentumRule& rule, const Stream& stream) {
    check_slices(s);
    launch<equal_rows_kernel>(line_grid(s.m, s.count), stream, factors, momentum, grad, partial, control, s,
                              momentum_parts(s), rule);
}

int64_t neuron_scales_floats(const SliceBatch& s) { return int64_t{2} * s.count * s.neurons(); }

template <typename T>
void neuron_scales(float* scales, float* state, const T* Z, const StepControl* control, const SliceBatch& s,
                   const SliceLayout& layout, const NeuronRule& rule, const Stream& stream) {
    check_slices(s);
    launch<neuron_sums_kernel<T>>(line_grid(s.neurons(), s.count), stream, scales, Z, control, s, layout);
    launch<neuron_scales_kernel>({s.count, kFlatBlock}, stream, scales, state, control, s, rule);
}

template <typename T, typename WorkT>
void fold_update(float* master, WorkT* work, const T* Z, const StepControl* control, const SliceBatch& s,
                 const SliceLayout& layout, const Stream& stream, const float* neuron_scales) {
    check_slices(s);
    for_slice_width(s, layout.row_stride % kVecWidth<float> == 0 ? s.n : 1, [&]<int W>(Constant<W>) {
        launch<fold_update_kernel<T, WorkT, W>>(slice_grid<W>(s), stream, master, work, Z, control, s, layout,
                                                neuron_scales);
    });
}

template <typename T>
void add_identity(T* out, const T* x, float a, int count, int side, int64_t ld, const Stream& stream) {
    const int64_t n = int64_t{count} * side * ld;
    constexpr int W = kVecWidth<float>;  // for 16-bit T half a vector, which divides rows of 16 elements on a CPU, too
    at_width<W>(vec_aligned<T, W>(ld, out, x), [&]<int W>(Constant<W>) {
        launch<add_identity_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, out, x, a, side, ld, n);
    });
}

void drop_null_directions(float* U, const float* S, int rows, int r, float tolerance, const Stream& stream) {
    const int64_t n = int64_t{rows} * r;
    launch<drop_null_directions_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, U, S, n, r, tolerance);
}

#define INSTANTIATE(T)                                              \
    template decltype(unfold<T>) unfold<T>;                         \
    template decltype(neuron_scales<T>) neuron_scales<T>;           \
    template decltype(fold_update<T, float>) fold_update<T, float>; \
    template decltype(fold_update<T, bf16>) fold_update<T, bf16>;   \
    template decltype(add_identity<T>) add_identity<T>;
INSTANTIATE(float)
INSTANTIATE(bf16)
INSTANTIATE(f16)
#undef INSTANTIATE

}  // namespace teon
