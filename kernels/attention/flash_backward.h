// Shared by the backward passes of flash attention. Private to kernels/attention/flash_*_backward.cu.
#pragma once

#include "kernels/attention/flash_calls.h"
#include "kernels/attention/flash_shape.h"

namespace teon {

// One past the last row that sees key t: the first row whose first_key exceeds t.
__device__ inline int readers_end(const int* first_key, int t, int T) {
    int low = t + 1;
    int high = T;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (first_key[middle] > t) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// Reads the statistics of the rows of query head h; of rows beyond T they are 0.
template <int M, int HS>
__device__ __forceinline__ void load_row_stats(RowStats (&of_row)[M][2], const RowStats* stats,
                                               const FlashRows<M, HS>& rows, int h) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int t = rows.row(m, half);
            of_row[m][half] = t < rows.s.T ? stats[rows.s.row(rows.b, h, t)] : RowStats{};
        }
    }
}

// Calls f(x, of_query[column]) for each score x of a transposed product, whose columns are queries.
template <int M, int N, typename T, typename F>
__device__ __forceinline__ void for_columns(float (&x)[M][N][4], const T* of_query, F f) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const auto pair = load_vec<2>(of_query + flash_column(n, 0));
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) f(x[m][n][i], pair[i % 2]);
        }
    }
}

// dS = P (dP - D) for 16 keys, in place of P. dp is dP - D.
template <int N>
__device__ __forceinline__ void multiply_scores(float (&p)[N][4], const float (&dp)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) p[n][i] *= dp[n][i];
    }
}

// Sets the elements of x for keys that a query does not see to 0. The first row is key `key`, the first column query
// `query`. first: the first key that each query sees, in shared memory; without `documents` it is key 0. A nullptr
// instead of the flag would hide from nvcc 12.4 where it points.
template <int M, int N>
__device__ __forceinline__ void mask_transposed(float (&x)[M][N][4], int key, int query, const int* first,
                                                bool documents) {
    const int lane = opaque(lane_of_thread());  // as in FlashSoftmax
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int column = flash_column(n, i, lane);
            const int lowest = documents ? first[column] : 0;
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int k = key + 16 * m + 8 * half + lane / 4;
                    if (k < lowest || k > query + column) x[m][n][2 * half + i] = 0.0f;
                }
            }
        }
    }
}

// Writes the column sums of a warp's 16 M rows, from row `first` of sequence b on, to their row of partial (B, ceil(T /
// 16 M), packed_row). partial may be nullptr. Rows of x beyond T are 0.
template <int M, int C, int HS>
__device__ __forceinline__ void flash_column_sums(float* partial, const FlashShape<HS>& s, int b, int first, int head,
                                                  const float (&x)[M][C][4]) {
    constexpr int kRows = 16 * M;
    constexpr int kFragments = 8;  // 8 lanes share a column and end with a fragment each
    if (partial == nullptr || first >= s.T) return;
    const int lane = opaque(lane_of_thread());
    const int64_t row = int64_t{b} * ((opaque(s.T) + kRows - 1) / kRows) + first / kRows;
    float* const to = partial + row * s.packed_row + head * HS + 2 * lane;
#pragma unroll
    for (int begin = 0; begin < C; begin += kFragments) {
        Vec<float, 2> sums[kFragments] = {};
#pragma unroll
        for (int n = 0; n < kFragments && begin + n < C; ++n) {
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[n][i % 2] += x[m][begin + n][i];
            }
        }
        // Lanes exchange halves and each adds up one half: lane l ends with the sums of fragment l / 4.
#pragma unroll
        for (int half = kFragments / 2; half > 0; half /= 2) {
            const bool upper = lane & (4 * half);
#pragma unroll
            for (int n = 0; n < half; ++n) {
                FOR_VEC(i, 2) {
                    const float sent = upper ? sums[n][i] : sums[n + half][i];
                    sums[n][i] =
                        (upper ? sums[n + half][i] : sums[n][i]) + __shfl_xor_sync(0xffffffffu, sent, 4 * half);
                }
            }
        }
        if (begin + lane / 4 < C) store_vec(to + 8 * begin, sums[0]);
    }
}

}  // namespace teon
