// Flash attention's operations on fragments and on tiles in shared memory (runtime/tensor_cores/tensor_tile.h). Private
// to kernels/.
#pragma once

#include "runtime/tensor_cores/tensor_tile.h"

namespace teon {

inline constexpr int kFlashWarps = 4;
inline constexpr int kFlashThreads = 32 * kFlashWarps;

template <int ROWS, int COLS>
using FlashTile = TensorTile<bf16, ROWS, COLS, kFlashThreads>;

template <int M, int N>
__device__ __forceinline__ void flash_scale(float (&x)[M][N][4], float factor) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) x[m][n][i] *= factor;
        }
    }
}

// Multiplies each row by its own factor.
template <int M, int N>
__device__ __forceinline__ void flash_scale_rows(float (&x)[M][N][4], const float (&factor)[M][2]) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) x[m][n][i] *= factor[m][i / 2];
        }
    }
}

// An operand A of 16 M rows and 16 K columns that is constant in a kernel's loop. If HELD it stays in registers, else
// every product reads it from shared memory again.
template <int M, int K, bool HELD>
struct FlashOperand {
    uint32_t held[HELD ? M : 1][HELD ? K : 1][4];

    template <typename Tile>
    __device__ __forceinline__ void hold(const Tile& tile) {
        if constexpr (HELD) {
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int k = 0; k < K; ++k) tile.load_a(held[m][k], 16 * m, k);
            }
        }
    }
    template <typename Tile>
    __device__ __forceinline__ void get(uint32_t (&a)[4], const Tile& tile, int m, int k) const {
        if constexpr (HELD) {
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = held[m][k][i];
        } else {
            tile.load_a(a, 16 * m, k);
        }
    }
};

// The sum or maximum over the four lanes that hold one row of a fragment.
__device__ __forceinline__ float flash_row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float flash_row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

}  // namespace teon
