// RMSNorm of queries and keys ("QK-norm": Dehghani et al., arXiv 2302.05442; as RMSNorm of each head in the Qwen3
// technical report, arXiv 2505.09388, and of all heads in OLMo 2's, arXiv 2501.00656). A packed row is a sequence of
// the vectors of QkVectors. The derivation in norm.cu holds for each query and key, with one weight for all queries
// and one for all keys.
#include "kernels/qk_norm.h"

#include "kernels/column_sums.h"

namespace teon {

namespace {

// Vector i of row n of a packed tensor: its first element and its number of elements.
struct QkVector {
    int64_t begin;
    int width;
};
__device__ __forceinline__ QkVector vector_at(const QkVectors& v, int64_t n, int i) {
    const int64_t row = n * v.row_width();
    if (i < v.queries) return {row + i * v.q_width, v.q_width};
    return {row + v.queries * v.q_width + (i - v.queries) * v.k_width, v.k_width};
}

}  // namespace

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kBlock)
    qk_norm_forward_kernel(T* out, float* rstd, const T* x, const T* q_weight, const T* k_weight, int rows,
                           QkVectors vectors, float eps) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= rows) return;
    const int n = row / vectors.all();
    const int i = row % vectors.all();
    const auto [begin, width] = vector_at(vectors, n, i);
    out += begin;
    x += begin;
    if (i >= vectors.normed()) {
        Shape::for_each(width, [=](int, int j) { store_vec(out + j, load_vec<W>(x + j)); });
        return;
    }
    RowCache<T, Shape> cache;
    Vec<float, W> squares{};
    Shape::for_each(width, [&](int slot, int j) { cache.keep(slot, x + j); });
    Shape::for_each(width, [&](int slot, int j) {
        const auto v = cache.get(slot, x + j);
        FOR_VEC(k, W) squares[k] += v[k] * v[k];
    });
    const float scale = 1.0f / sqrtf(Shape::sum(squares) / static_cast<float>(width) + eps);
    const T* weight = i < vectors.queries ? q_weight : k_weight;
    Shape::for_each(width, [&](int slot, int j) {
        auto v = cache.get(slot, x + j);
        const auto w = load_floats<W>(weight + j);
        FOR_VEC(k, W) v[k] = v[k] * scale * w[k];
        store_floats(out + j, v);
    });
    if (Shape::lane() == 0) rstd[int64_t{n} * vectors.normed() + i] = scale;
}

// dqkv = rstd * (g - xhat * mean of (g xhat)), where g = weight * dqkv, for one vector.
template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kBlock)
    qk_norm_backward_kernel(T* dqkv, const T* x, const float* rstd, const T* q_weight, const T* k_weight, int rows,
                            QkVectors vectors) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();  // among the vectors that are normalized
    if (row >= rows) return;
    const int n = row / vectors.normed();
    const int i = row % vectors.normed();
    const auto [begin, width] = vector_at(vectors, n, i);
    dqkv += begin;
    x += begin;
    const float scale = rstd[row];
    const T* weight = i < vectors.queries ? q_weight : k_weight;

    // A vector is short: the second read comes from cache.
    Vec<float, W> sums{};
    Shape::for_each(width, [&](int, int j) {
        const auto v = load_floats<W>(x + j);
        const auto d = load_floats<W>(dqkv + j);
        const auto w = load_floats<W>(weight + j);
        FOR_VEC(k, W) sums[k] += d[k] * w[k] * v[k];
    });
    const float mean = Shape::sum(sums) * scale / static_cast<float>(width);
    Shape::for_each(width, [&](int, int j) {
        const auto v = load_floats<W>(x + j);
        const auto w = load_floats<W>(weight + j);
        auto d = load_floats<W>(dqkv + j);
        FOR_VEC(k, W) d[k] = scale * (d[k] * w[k] - v[k] * scale * mean);
        store_floats(dqkv + j, d);
    });
}

// partial (chunks, q_width + k_width): dqkv * xhat, summed over the queries of the chunk's rows, then the same for the
// keys. A thread processes W columns of one kind.
template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock)
    qk_norm_partial_weight_grad_kernel(float* partial, const T* dqkv, const T* x, const float* rstd, int N,
                                       QkVectors vectors, RowChunks chunks) {
    wait_for_earlier_kernels();
    const int vecs = vectors.weights() / W;
    const int64_t item = int64_t{blockIdx.x} * kFlatBlock + threadIdx.x;
    if (item >= int64_t{chunks.count} * vecs) return;
    const int chunk = static_cast<int>(item / vecs);
    const int column = static_cast<int>(item % vecs) * W;
    const bool query = column < vectors.q_width;
    const int j = query ? column : column - vectors.q_width;
    const int first = chunk * chunks.rows;
    const int last = std::min(N, first + chunks.rows);
    const int first_vector = query ? 0 : vectors.queries;
    const int last_vector = query ? vectors.queries : vectors.normed();
    Vec<float, W> sums{};
    for (int row = first; row < last; ++row) {
#pragma unroll 4
        for (int i = first_vector; i < last_vector; ++i) {
            const int64_t at = vector_at(vectors, row, i).begin + j;
            const auto d = load_floats<W>(dqkv + at);
            const auto v = load_floats<W>(x + at);
            const float scale = rstd[int64_t{row} * vectors.normed() + i];
            FOR_VEC(k, W) sums[k] += d[k] * (v[k] * scale);
        }
    }
    store_vec(partial + int64_t{chunk} * vectors.weights() + column, sums);
}

template <typename T>
void qk_norm_forward(T* out, float* rstd, const T* x, const T* q_weight, const T* k_weight, int N,
                     const QkVectors& vectors, float eps, const Stream& stream) {
    const int rows = N * vectors.all();
    for_row_shape<T, RowUse::held>(vec_aligned<T, kVecWidth<T>>(vectors.k_width, out, x, q_weight, k_weight),
                                   vectors.q_width, [&]<typename Shape>(Shape) {
                                       launch<qk_norm_forward_kernel<T, Shape>>({Shape::blocks(rows), Shape::kBlock},
                                                                                stream, out, rstd, x, q_weight,
                                                                                k_weight, rows, vectors, eps);
                                   });
}

static constexpr int kQkNormChunks = 256;    // at most
static constexpr int kQkNormChunkRows = 32;  // at least

size_t qk_norm_backward_scratch_bytes(int N, const QkVectors& vectors) {
    return chunk_sums_bytes(N, kQkNormChunks, kQkNormChunkRows, vectors.weights());
}

template <typename T>
void qk_norm_backward(const QkNormBackward<T>& a, const QkVectors& vectors, const Stream& stream) {
    float* partial = static_cast<float*>(a.scratch);
    const RowChunks chunks = row_chunks(a.N, kQkNormChunks, kQkNormChunkRows);
    constexpr int kWidth = kVecWidth<T>;
    // The weights' gradients come first, because they read the gradient that the last kernel overwrites.
    at_width<kWidth>(vec_aligned<T, kWidth>(vectors.k_width, partial, a.dqkv, a.x), [&]<int W>(Constant<W>) {
        const int64_t items = int64_t{chunks.count} * (vectors.weights() / W);
        launch<qk_norm_partial_weight_grad_kernel<T, W>>({ceil_div(items, kFlatBlock), kFlatBlock}, stream, partial,
                                                         a.dqkv, a.x, a.rstd, a.N, vectors, chunks);
    });
    add_column_sums({{{a.dq_weight, vectors.q_width}, {a.dk_weight, vectors.k_width}}, a.accumulate}, partial,
                    chunks.count, stream);
    const int rows = a.N * vectors.normed();
    const bool aligned = vec_aligned<T, kWidth>(vectors.k_width, a.dqkv, a.x, a.q_weight, a.k_weight);
    for_row_shape<T, RowUse::sums>(aligned, vectors.q_width, [&]<typename Shape>(Shape) {
        launch<qk_norm_backward_kernel<T, Shape>>({Shape::blocks(rows), Shape::kBlock}, stream, a.dqkv, a.x, a.rstd,
                                                  a.q_weight, a.k_weight, rows, vectors);
    });
}

FOR_STORAGE_TYPES(qk_norm_forward);
FOR_STORAGE_TYPES(qk_norm_backward);

}  // namespace teon
