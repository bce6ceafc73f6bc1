// Sums over the rows of a tensor, which the gradients of biases and of norms' weights are. There are two stages, first
// within chunks of rows and then over the chunks, so that nothing depends on scheduling. Private to kernels/.
#pragma once

#include <algorithm>

#include "base/integer.h"
#include "kernels/common.h"

namespace teon {

// N rows in `count` chunks of `rows` rows (the last one may have fewer). Depends on N alone.
struct RowChunks {
    int rows, count;
};
inline RowChunks row_chunks(int N, int most_chunks, int least_rows) {
    const int rows = std::max(least_rows, ceil_div(N, most_chunks));
    return {rows, ceil_div(N, rows)};
}

// Bytes for `columns` floats of each chunk of N or fewer rows. Fewer rows may have more chunks: 16,384 rows have 2,048
// chunks of 8, but 16,385 rows have 1,821 of 9.
inline size_t chunk_sums_bytes(int N, int most_chunks, int least_rows, int columns) {
    const int chunks = std::min(most_chunks, ceil_div(N, least_rows));
    return sizeof(float) * static_cast<size_t>(chunks) * static_cast<size_t>(columns);
}

// The destinations of up to three kinds of sums: += if accumulate, else =. A kind has `width` columns. to = nullptr
// discards its sums.
struct ColumnGrads {
    struct Kind {
        float* to;
        int width;
    } kinds[3];
    bool accumulate;
    constexpr int columns() const { return kinds[0].width + kinds[1].width + kinds[2].width; }
};

// Adds partial (chunks, columns), whose columns are kind after kind, over the chunks, and stores the sums to grads. A
// thread processes W columns. PARTS warps share the chunks, and their sums are added in the order of the warps. Widths
// are multiples of W.
template <int W, int PARTS>
__global__ void __launch_bounds__(32 * PARTS) column_sums_kernel(ColumnGrads grads, const float* partial, int chunks) {
    wait_for_earlier_kernels();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int part = static_cast<int>(threadIdx.x) / 32;
    const int columns = grads.columns();
    int column = (static_cast<int>(blockIdx.x) * 32 + lane) * W;
    Vec<float, W> sums{};
    if (column < columns) {
#pragma unroll 8
        for (int chunk = part; chunk < chunks; chunk += PARTS) {
            const auto p = load_vec<W>(partial + int64_t{chunk} * columns + column);
            FOR_VEC(k, W) sums[k] += p[k];
        }
    }
    if constexpr (PARTS > 1) {
        SHARED(float, shared, 32 * PARTS * W);
        store_vec(shared + threadIdx.x * W, sums);
        __syncthreads();
        if (part > 0) return;
        for (int p = 1; p < PARTS; ++p) { FOR_VEC(k, W) sums[k] += shared[(p * 32 + lane) * W + k]; }
    }
    if (column >= columns) return;
    int kind = 0;
    for (; column >= grads.kinds[kind].width; ++kind) column -= grads.kinds[kind].width;
    float* grad = grads.kinds[kind].to;
    if (grad == nullptr) return;
    grad += column;
    Vec<float, W> total{};
    if (grads.accumulate) total = load_vec<W>(grad);
    FOR_VEC(k, W) total[k] += sums[k];
    store_vec(grad, total);
}

inline void add_column_sums(const ColumnGrads& grads, const float* partial, int chunks, const Stream& stream) {
    auto add_up = [&]<int W, int PARTS>(Constant<W>, Constant<PARTS>) {
        launch<column_sums_kernel<W, PARTS>>({ceil_div(grads.columns(), 32 * W), 32 * PARTS}, stream, grads, partial,
                                             chunks);
    };
    if constexpr (kRowsByThread) {
        constexpr int W = kVecWidth<float>;
        const auto aligned = [&](int kind) {
            return vec_aligned<float, W>(grads.kinds[kind].width, partial, grads.kinds[kind].to);
        };
        if (grads.kinds[0].width <= kThreadRow && aligned(0) && aligned(1) && aligned(2))
            return add_up(Constant<W>{}, Constant<1>{});
    }
    add_up(Constant<1>{}, Constant<32>{});
}

}  // namespace teon
