// RMSNorm of each query and key head ("QK-norm": Dehghani et al., arXiv 2302.05442; as RMSNorm in the Qwen3 technical
// report, arXiv 2505.09388). A packed row of queries, keys and values is NH + 2 NKV rows of HS elements, so that the
// derivation is rmsnorm.cu's for the rows of queries and keys, with a weight for each kind.
#include "kernels/norm.h"
#include "kernels/qk_norm.h"

namespace teon {

namespace {

struct Heads {
    int queries, keys;
    __host__ __device__ int normed() const { return queries + keys; }
    __host__ __device__ int all() const { return queries + 2 * keys; }
};

}  // namespace

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kBlock)
    qk_norm_forward_kernel(T* out, float* rstd, const T* x, const T* q_weight, const T* k_weight, int rows, Heads heads,
                           int HS, float eps) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= rows) return;
    const int n = row / heads.all(), head = row % heads.all();
    out += int64_t{row} * HS;
    x += int64_t{row} * HS;
    if (head >= heads.normed()) {
        Shape::for_each(HS, [=](int, int j) { store_vec(out + j, load_vec<W>(x + j)); });
        return;
    }
    RowCache<T, Shape> cache;
    Vec<float, W> squares{};
    Shape::for_each(HS, [&](int slot, int j) {
        const Vec<T, W> v = load_vec<W>(x + j);
        cache.keep(slot, v);
        FOR_VEC(k, W) squares[k] += static_cast<float>(v[k]) * static_cast<float>(v[k]);
    });
    const float scale = 1.0f / sqrtf(Shape::sum(squares) / static_cast<float>(HS) + eps);
    const T* weight = head < heads.queries ? q_weight : k_weight;
    Shape::for_each(HS, [&](int slot, int j) {
        auto v = cache.get(slot, x + j);
        const auto w = load_floats<W>(weight + j);
        FOR_VEC(k, W) v[k] = v[k] * scale * w[k];
        store_floats(out + j, v);
    });
    if (Shape::lane() == 0) rstd[int64_t{n} * heads.normed() + head] = scale;
}

// One head of dqkv = rstd * (g - xhat * mean of (g xhat)), where g = weight * dqkv.
template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kBlock)
    qk_norm_backward_kernel(T* dqkv, const T* x, const float* rstd, const T* q_weight, const T* k_weight, int rows,
                            Heads heads, int HS) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();  // of the heads that are normalized
    if (row >= rows) return;
    const int n = row / heads.normed(), head = row % heads.normed();
    const int64_t begin = (int64_t{n} * heads.all() + head) * HS;
    dqkv += begin;
    x += begin;
    const float scale = rstd[row];
    const T* weight = head < heads.queries ? q_weight : k_weight;

    // A head is short: what is read twice comes from cache the second time.
    Vec<float, W> sums{};
    Shape::for_each(HS, [&](int, int j) {
        const auto v = load_floats<W>(x + j), d = load_floats<W>(dqkv + j), w = load_floats<W>(weight + j);
        FOR_VEC(k, W) sums[k] += d[k] * w[k] * v[k];
    });
    const float mean = Shape::sum(sums) * scale / static_cast<float>(HS);
    Shape::for_each(HS, [&](int, int j) {
        const auto v = load_floats<W>(x + j), w = load_floats<W>(weight + j);
        auto d = load_floats<W>(dqkv + j);
        FOR_VEC(k, W) d[k] = scale * (d[k] * w[k] - v[k] * scale * mean);
        store_floats(dqkv + j, d);
    });
}

// partial (chunks, 2, HS): dqkv * xhat of the query heads, then of the key heads, each summed over the rows of the
// chunk. One thread has W columns of one kind.
template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock)
    qk_norm_partial_weight_grad_kernel(float* partial, const T* dqkv, const T* x, const float* rstd, int N, Heads heads,
                                       int HS, RowChunks chunks) {
    wait_for_earlier_kernels();
    const int vecs = HS / W;
    const int64_t item = int64_t{blockIdx.x} * kFlatBlock + threadIdx.x;
    if (item >= int64_t{chunks.count} * 2 * vecs) return;
    const int chunk = static_cast<int>(item / (2 * vecs)), kind = static_cast<int>(item / vecs) % 2;
    const int j = static_cast<int>(item % vecs) * W;
    const int first = chunk * chunks.rows, last = std::min(N, first + chunks.rows);
    const int first_head = kind == 0 ? 0 : heads.queries, last_head = kind == 0 ? heads.queries : heads.normed();
    Vec<float, W> sums{};
    for (int row = first; row < last; row++) {
#pragma unroll 4
        for (int head = first_head; head < last_head; head++) {
            const int64_t at = (int64_t{row} * heads.all() + head) * HS + j;
            const auto d = load_floats<W>(dqkv + at), v = load_floats<W>(x + at);
            const float scale = rstd[int64_t{row} * heads.normed() + head];
            FOR_VEC(k, W) sums[k] += d[k] * (v[k] * scale);
        }
    }
    store_vec(partial + (int64_t{chunk} * 2 + kind) * HS + j, sums);
}

template <typename T>
void qk_norm_forward(T* out, float* rstd, const T* x, const T* q_weight, const T* k_weight, int N, int NH, int NKV,
                     int HS, float eps, const Stream& stream) {
    const Heads heads{NH, NKV};
    const int rows = N * heads.all();
    for_row_shape<T, true>(
        HS, HS,
        [&](auto shape) {
            using Shape = decltype(shape);
            launch<qk_norm_forward_kernel<T, Shape>>({Shape::blocks(rows), Shape::kBlock}, stream, out, rstd, x,
                                                     q_weight, k_weight, rows, heads, HS, eps);
        },
        out, x, q_weight, k_weight);
}

static RowChunks chunks_of(int N) { return row_chunks(N, 256, 32); }

size_t qk_norm_backward_scratch_bytes(int N, int HS) { return chunks_of(N).partial_bytes(2 * HS); }

template <typename T>
void qk_norm_backward(T* dqkv, float* dq_weight, float* dk_weight, void* scratch, const T* x, const float* rstd,
                      const T* q_weight, const T* k_weight, int N, int NH, int NKV, int HS, bool accumulate,
                      const Stream& stream) {
    const Heads heads{NH, NKV};
    float* partial = static_cast<float*>(scratch);
    const RowChunks chunks = chunks_of(N);
    auto at_width = [&](auto width) {
        constexpr int W = decltype(width)::value;
        const int64_t items = int64_t{chunks.count} * 2 * (HS / W);
        launch<qk_norm_partial_weight_grad_kernel<T, W>>({ceil_div(items, kFlatBlock), kFlatBlock}, stream, partial,
                                                         dqkv, x, rstd, N, heads, HS, chunks);
    };
    // First what reads dqkv as a whole.
    if (vec_aligned<T, kVecWidth<T>>(HS, partial, dqkv, x)) {
        at_width(std::integral_constant<int, kVecWidth<T>>{});
    } else {
        at_width(std::integral_constant<int, 1>{});
    }
    add_column_sums({{dq_weight, dk_weight}, accumulate}, partial, chunks.count, 2, HS, stream);
    const int rows = N * heads.normed();
    for_row_shape<T, false>(
        HS, HS,
        [&](auto shape) {
            using Shape = decltype(shape);
            launch<qk_norm_backward_kernel<T, Shape>>({Shape::blocks(rows), Shape::kBlock}, stream, dqkv, x, rstd,
                                                      q_weight, k_weight, rows, heads, HS);
        },
        dqkv, x, q_weight, k_weight);
}

template void qk_norm_forward(float*, float*, const float*, const float*, const float*, int, int, int, int, float,
                              const Stream&);
template void qk_norm_forward(bf16*, float*, const bf16*, const bf16*, const bf16*, int, int, int, int, float,
                              const Stream&);
template void qk_norm_backward(float*, float*, float*, void*, const float*, const float*, const float*, const float*,
                               int, int, int, int, bool, const Stream&);
template void qk_norm_backward(bf16*, float*, float*, void*, const bf16*, const float*, const bf16*, const bf16*, int,
                               int, int, int, bool, const Stream&);

}  // namespace teon
