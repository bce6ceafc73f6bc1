// What Muon and Teon need beside matrix products: momentum with the Frobenius norms that Newton-Schulz starts from, the
// unfolding of a stack's slices, and the update that folds the result back into the weights (Zhang et al., arXiv
// 2601.23261, algorithm 1). Everything is memory-bound; each kernel reads and writes a slice once. Blocks are (part of
// a slice, slice).
#include <limits>

#include "kernels/common.h"
#include "kernels/ops.h"

namespace teon {

namespace {

constexpr float kEpsilon = 1e-7f;  // keeps 0 / 0 away; as in Keller Jordan's Muon

__device__ __forceinline__ bool skips(const StepControl* control) { return control && control->skip; }
__device__ __forceinline__ float grad_scale(const StepControl* control) { return control ? control->scale : 1.0f; }

// Calls f(W) for the widest access of slices whose rows (of `run` elements, or whole slices) start aligned.
template <typename F>
void for_slice_width(const SliceBatch& s, int64_t run, F f) {
    constexpr int W = kVecWidth<float>;
    if (s.aligned && run % W == 0) {
        f(std::integral_constant<int, W>{});
    } else {
        f(std::integral_constant<int, 1>{});
    }
}

template <int W>
LaunchConfig slice_grid(const SliceBatch& s) {
    return {dim3(static_cast<unsigned>(flat_blocks<W>(s.size())), static_cast<unsigned>(s.count)), kFlatBlock};
}

template <int W>
__global__ void __launch_bounds__(kFlatBlock)
    momentum_update_kernel(float* momentum, float* partial, const float* grad, const StepControl* control, SliceBatch s,
                           float mu, bool nesterov) {
    wait_for_earlier_kernels();
    if (skips(control)) return;
    const Slice slice = s.slices[blockIdx.y];
    const float scale = grad_scale(control);
    float sum = 0.0f;
    for_each_vec<W>(s.size(), [&](auto width, int64_t i) {
        constexpr int w = decltype(width)::value;
        auto m = load_floats<w>(momentum + slice.state + i);
        auto u = m;
        if (grad) {
            auto g = load_floats<w>(grad + slice.param + i);
            for (int k = 0; k < w; k++) {
                m[k] = fmaf(mu, m[k], scale * g[k]);
                u[k] = nesterov ? fmaf(mu, m[k], scale * g[k]) : m[k];
            }
            store_vec(momentum + slice.state + i, m);
        }
        for (int k = 0; k < w; k++) u[k] *= u[k];
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
    const int matrix = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
    float* scale = scales + int64_t{matrix} * K;
    if (skips(control)) {
        for (int k = lane; k < K; k += 32) scale[k] = 0.0f;
        return;
    }
    float total = 0.0f;  // ||Z||_F^2
    for (int k = 0; k < K; k++) {
        const float* parts_of_slice = partial + (int64_t{matrix} * K + k) * parts;
        float sum = 0.0f;
        for (int p = lane; p < parts; p += 32) sum += parts_of_slice[p];
        sum = warp_sum(sum);
        const float norm = sqrtf(sum), factor = normalize_slices ? 1.0f / (norm + kEpsilon) : 1.0f;
        total += norm * factor * norm * factor;
        if (lane == 0) scale[k] = factor;
    }
    const bool finite = total <= std::numeric_limits<float>::max();
    const float factor = finite ? 1.0f / (sqrtf(total) * margin + kEpsilon) : 0.0f;
    if (lane != 0) return;
    for (int k = 0; k < K; k++) scale[k] = finite ? scale[k] * factor : 0.0f;
    if (!finite) nonfinite[matrix] = 1;
}

// Where element e of slice `index` lies in the unfoldings.
__device__ __forceinline__ int64_t place_of(const SliceLayout& layout, int index, int64_t e, int n) {
    const unsigned i = static_cast<unsigned>(e) / static_cast<unsigned>(n);
    const unsigned j = static_cast<unsigned>(e) - i * static_cast<unsigned>(n);
    return index / layout.K * layout.matrix_stride + index % layout.K * layout.slice_stride + i * layout.row_stride + j;
}

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock)
    unfold_kernel(T* Z, const float* momentum, const float* grad, const float* scales, const StepControl* control,
                  SliceBatch s, SliceLayout layout, float mu) {
    wait_for_earlier_kernels();
    const int index = static_cast<int>(blockIdx.y);
    const Slice slice = s.slices[index];
    const float factor = scales ? scales[index] : 1.0f, scale = grad_scale(control);
    for_each_vec<W>(s.size(), [&](auto width, int64_t e) {
        constexpr int w = decltype(width)::value;
        auto x = load_floats<w>(momentum + slice.state + e);
        if (grad) {
            auto g = load_floats<w>(grad + slice.param + e);
            for (int k = 0; k < w; k++) x[k] = fmaf(mu, x[k], scale * g[k]);
        }
        for (int k = 0; k < w; k++) x[k] = factor == 0.0f ? 0.0f : factor * x[k];
        store_floats(Z + place_of(layout, index, e, s.n), x);
    });
}

template <typename T, typename WorkT, int W>
__global__ void __launch_bounds__(kFlatBlock)
    fold_update_kernel(float* master, WorkT* work, const T* Z, const StepControl* control, SliceBatch s,
                       SliceLayout layout, float peak_lr) {
    wait_for_earlier_kernels();
    if (skips(control)) return;
    const float lr = control ? peak_lr * control->lr_factor : peak_lr;
    const int index = static_cast<int>(blockIdx.y);
    const Slice slice = s.slices[index];
    const float keep = 1.0f - lr * slice.decay, step = lr * slice.step;
    for_each_vec<W>(s.size(), [&](auto width, int64_t e) {
        constexpr int w = decltype(width)::value;
        auto x = load_floats<w>(master + slice.param + e);
        auto o = load_floats<w>(Z + place_of(layout, index, e, s.n));
        for (int k = 0; k < w; k++) x[k] = fmaf(keep, x[k], -step * o[k]);
        store_vec(master + slice.param + e, x);
        if (work) store_floats(work + slice.param + e, x);
    });
}

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock)
    add_identity_kernel(T* out, const T* x, float a, int side, int64_t ld, int64_t n) {
    wait_for_earlier_kernels();
    for_each_vec<W>(n, [=](auto width, int64_t e) {
        constexpr int w = decltype(width)::value;
        auto v = load_floats<w>(x + e);
        const int64_t row = e / ld, column = e - row * ld, diagonal = row % side - column;
        for (int k = 0; k < w; k++) v[k] += k == diagonal ? a : 0.0f;
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

// Slices are indexed with 32 bits inside, and their number is a grid's second extent.
void check_slices(const SliceBatch& s) {
    CHECK(s.m > 0 && s.n > 0 && s.size() <= 0x7fffffff, "a slice of {} x {} has more than 2^31 - 1 elements", s.m, s.n);
    CHECK(s.count >= 0 && s.count <= 65535, "a batch of {} slices; the most is 65535", s.count);
}

}  // namespace

int momentum_parts(const SliceBatch& s) {
    int64_t parts = 0;
    for_slice_width(s, 0, [&](auto width) { parts = flat_blocks<decltype(width)::value>(s.size()); });
    return static_cast<int>(parts);
}

void momentum_update(float* momentum, float* partial, const float* grad, const StepControl* control,
                     const SliceBatch& s, float mu, bool nesterov, const Stream& stream) {
    check_slices(s);
    for_slice_width(s, 0, [&](auto width) {
        constexpr int W = decltype(width)::value;
        launch<momentum_update_kernel<W>>(slice_grid<W>(s), stream, momentum, partial, grad, control, s, mu, nesterov);
    });
}

void slice_scales(float* scales, int* nonfinite, const float* partial, const StepControl* control, int parts,
                  int matrices, int K, float margin, bool normalize_slices, const Stream& stream) {
    launch<slice_scales_kernel>({matrices, 32}, stream, scales, nonfinite, partial, control, parts, K, margin,
                                normalize_slices);
}

template <typename T>
void unfold(T* Z, const float* momentum, const float* grad, const float* scales, const StepControl* control,
            const SliceBatch& s, const SliceLayout& layout, float mu, const Stream& stream) {
    check_slices(s);
    for_slice_width(s, layout.row_stride % kVecWidth<float> == 0 ? s.n : 1, [&](auto width) {
        constexpr int W = decltype(width)::value;
        launch<unfold_kernel<T, W>>(slice_grid<W>(s), stream, Z, momentum, grad, scales, control, s, layout, mu);
    });
}

template <typename T, typename WorkT>
void fold_update(float* master, WorkT* work, const T* Z, const StepControl* control, const SliceBatch& s,
                 const SliceLayout& layout, float lr, const Stream& stream) {
    check_slices(s);
    for_slice_width(s, layout.row_stride % kVecWidth<float> == 0 ? s.n : 1, [&](auto width) {
        constexpr int W = decltype(width)::value;
        launch<fold_update_kernel<T, WorkT, W>>(slice_grid<W>(s), stream, master, work, Z, control, s, layout, lr);
    });
}

template <typename T>
void add_identity(T* out, const T* x, float a, int count, int side, int64_t ld, const Stream& stream) {
    const int64_t n = int64_t{count} * side * ld;
    auto go = [&](auto width) {
        constexpr int W = decltype(width)::value;
        launch<add_identity_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, out, x, a, side, ld, n);
    };
    constexpr int W = kVecWidth<float>;  // of T: half a vector, which rows of 16 elements hold whole
    if (vec_aligned<T, W>(ld, out, x)) {
        go(std::integral_constant<int, W>{});
    } else {
        go(std::integral_constant<int, 1>{});
    }
}

void drop_null_directions(float* U, const float* S, int rows, int r, float tolerance, const Stream& stream) {
    const int64_t n = int64_t{rows} * r;
    launch<drop_null_directions_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, U, S, n, r, tolerance);
}

#define INSTANTIATE(T)                                                                                             \
    template void unfold(T*, const float*, const float*, const float*, const StepControl*, const SliceBatch&,      \
                         const SliceLayout&, float, const Stream&);                                                \
    template void fold_update(float*, float*, const T*, const StepControl*, const SliceBatch&, const SliceLayout&, \
                              float, const Stream&);                                                               \
    template void fold_update(float*, bf16*, const T*, const StepControl*, const SliceBatch&, const SliceLayout&,  \
                              float, const Stream&);                                                               \
    template void add_identity(T*, const T*, float, int, int, int64_t, const Stream&);
INSTANTIATE(float)
INSTANTIATE(bf16)
INSTANTIATE(f16)
#undef INSTANTIATE

}  // namespace teon
