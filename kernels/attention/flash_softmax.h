// The softmax of flash attention, tile by tile, for the forward passes. Private to kernels/attention/flash*.cu.
#pragma once

#include <limits>

#include "kernels/attention/flash_shape.h"

namespace teon {

inline constexpr float kFlashInfinity = std::numeric_limits<float>::infinity();

// The running maximum (times scale_log2) and this lane's part of the running sum of the 16 M rows of a warp.
template <int M>
struct FlashSoftmax {
    float top[M][2], sum[M][2];

    __device__ __forceinline__ FlashSoftmax() {
#pragma unroll
        for (int m = 0; m < M; ++m) {
            top[m][0] = top[m][1] = -kFlashInfinity;
            sum[m][0] = sum[m][1] = 0.0f;
        }
    }

    // Replaces the scores of one tile of keys by P. `shrink` = the factors of the sums over earlier keys.
    template <int N, typename Rows>
    __device__ __forceinline__ void step(float (&s)[M][N][4], float (&shrink)[M][2], const Rows& rows, int key,
                                         float scale_log2) {
        // opaque: otherwise addresses of first keys take registers throughout a loop over the keys, and others spill.
        if (!rows.see_all(key, key + 8 * N)) flash_mask(s, rows, key, -kFlashInfinity, opaque(lane_of_thread()));
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float largest = -kFlashInfinity;
#pragma unroll
                for (int n = 0; n < N; ++n) largest = fmaxf(largest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                const float before = top[m][half];
                const float after = fmaxf(before, flash_row_max(largest) * scale_log2);
                const float base = after == -kFlashInfinity ? 0.0f : after;  // -infinity: the row has seen no key yet
                shrink[m][half] = exp2_fast(before - base);
                top[m][half] = after;
                float total = 0.0f;
#pragma unroll
                for (int n = 0; n < N; ++n) {
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; ++i) {
                        s[m][n][i] = exp2_fast(fmaf(s[m][n][i], scale_log2, -base));
                        total += s[m][n][i];
                    }
                }
                sum[m][half] = sum[m][half] * shrink[m][half] + total;
            }
        }
    }

    // At the end: writes the log-sum-exp of the rows of query head h, and divides o, the sum of P V, by the sum of P.
    template <int C, typename Rows>
    __device__ __forceinline__ void finish(float (&o)[M][C][4], float* lse, const Rows& rows, int h) const {
        constexpr float kLn2 = 0.693147181f;
        float normalize[M][2];
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float total = flash_row_sum(sum[m][half]);
                const int t = rows.row(m, half);
                normalize[m][half] = total == 0.0f ? 0.0f : 1.0f / total;
                if (lane_of_thread() % 4 == 0 && t < rows.s.T)
                    lse[rows.s.row(rows.b, h, t)] = top[m][half] * kLn2 + logf(total);
            }
        }
        flash_scale_rows(o, normalize);
    }
};

}  // namespace teon
