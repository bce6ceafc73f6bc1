// Tiles of bf16 rows in shared memory and their products on tensor cores: what the passes of attention_flash.cu share.
// Private to kernels/.
#pragma once

#include "runtime/tensor_core.h"

namespace teon {

inline constexpr int kFlashWarps = 4;
inline constexpr int kFlashThreads = 32 * kFlashWarps;

__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_of_thread() { return static_cast<int>(threadIdx.x) / 32; }

// ROWS x COLS elements. Chunk c (8 elements, 16 bytes) of row r lies where chunk c ^ (r % 8) would be: then 8 rows of
// one column of chunks, which ldmatrix reads at once, and 8 neighbouring chunks of one row, which copies write at once,
// both lie in different banks.
template <int ROWS, int COLS>
struct FlashTile {
    static constexpr int kChunks = COLS / 8;
    static constexpr int kElements = ROWS * COLS;
    static_assert(ROWS % 16 == 0 && kChunks % 8 == 0);
    bf16* memory;

    __device__ __forceinline__ bf16* chunk(int row, int c) const { return memory + row * COLS + (c ^ (row % 8)) * 8; }

    // All threads of the block start to copy `rows` rows of COLS elements, `stride` elements apart; the other rows of
    // the tile become 0. first: this thread's part of the first rows, see first_chunk.
    __device__ __forceinline__ void start_copy(const bf16* first, int64_t stride, int rows) const {
        constexpr int kStep = kFlashThreads / kChunks;  // a multiple of 8: chunks of a column lie kStep * COLS apart
        const int thread = static_cast<int>(threadIdx.x), row = thread / kChunks;
        bf16* const to = chunk(row, thread % kChunks);
#pragma unroll
        for (int i = 0; i < ROWS; i += kStep) cp_async<16>(to + i * COLS, first + i * stride, row < rows - i);
    }
    static __device__ __forceinline__ const bf16* first_chunk(const bf16* rows, int64_t stride) {
        const int thread = static_cast<int>(threadIdx.x);
        return rows + thread / kChunks * stride + thread % kChunks * 8;
    }

    // The tile's rows from `row` on, a multiple of 16.
    __device__ __forceinline__ FlashTile<ROWS, COLS> from(int row) const { return {memory + row * COLS}; }

    // Chunk 2 k + c, c = 0 or 1, of row `row` + lane_row, where row is a multiple of 8. The tile is 256-byte aligned,
    // so that k flips bits of an address that depends on the lane alone.
    __device__ __forceinline__ SharedAddress address(int row, int lane_row, int k, int c) const {
        return (SharedAddress(chunk(lane_row, c)) ^ 32 * k) + row * COLS * static_cast<int>(sizeof(bf16));
    }

    // Operand A: rows [row, row + 16), columns [16 k, 16 k + 16).
    __device__ __forceinline__ void load_a(uint32_t (&a)[4], int row, int k) const {
        const int lane = lane_of_thread();
        ldmatrix_x4(a, address(row, lane % 16, k, lane / 16));
    }
    // Two operands B whose columns are rows [row, row + 16) of the tile: {b[0], b[1]} and {b[2], b[3]}. Their rows are
    // the tile's columns [16 k, 16 k + 16).
    __device__ __forceinline__ void load_b_of_rows(uint32_t (&b)[4], int row, int k) const {
        const int lane = lane_of_thread();
        ldmatrix_x4(b, address(row, lane % 8 + lane / 16 * 8, k, lane / 8 % 2));
    }
    // Two operands B whose rows are rows [row, row + 16) of the tile, for columns [16 n, 16 n + 16).
    __device__ __forceinline__ void load_b(uint32_t (&b)[4], int row, int n) const {
        const int lane = lane_of_thread();
        ldmatrix_x4_trans(b, address(row, lane % 16, n, lane / 16));
    }

    // Writes the 16 M rows x COLS of `sum` that this warp holds to the tile's first rows, which no other warp uses, and
    // from there in whole chunks to global memory, the first `rows` of them, `stride` elements apart.
    template <int M>
    __device__ __forceinline__ void store(bf16* global, int64_t stride, int rows,
                                          const float (&sum)[M][COLS / 8][4]) const {
        const int lane = lane_of_thread();
        __syncwarp();
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int n = 0; n < kChunks; n++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    auto* pair = reinterpret_cast<uint32_t*>(chunk(16 * m + 8 * half + lane / 4, n)) + lane % 4;
                    *pair = pack_bf16(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16 * M * kChunks / 32; i++) {
            const int r = i * (32 / kChunks) + lane / kChunks, c = lane % kChunks;
            if (r < rows) store_vec(global + r * stride + c * 8, load_vec<8>(chunk(r, c)));
        }
    }
};

// sum (16 M x 8 N) += A (16 M x 16 K) B (16 K x 8 N). a(fragment, m, k) and b(two fragments, n / 2, k) bring the
// operands. UNROLL steps along K are one piece of code; more than 4 would load so far ahead that registers run out, but
// operands that are in registers already have no other way of being indexed.
template <int M, int N, int K, int UNROLL = (K < 4 ? K : 4), typename A, typename B>
__device__ __forceinline__ void flash_multiply(float (&sum)[M][N][4], A a, B b) {
#pragma unroll UNROLL
    for (int k = 0; k < K; k++) {
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) a(left[m], m, k);
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            uint32_t right[4];
            b(right, n, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16(sum[m][2 * n], left[m], right[0], right[1]);
                mma_m16n8k16(sum[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

template <int M, int N>
__device__ __forceinline__ void flash_scale(float (&x)[M][N][4], float factor) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) x[m][n][i] *= factor;
        }
    }
}

// Columns [16 k, 16 k + 16) of what a product has left in registers, as an operand A of the next one.
template <int N>
__device__ __forceinline__ void flash_pack_a(uint32_t (&a)[4], const float (&x)[N][4], int k) {
    a[0] = pack_bf16(x[2 * k][0], x[2 * k][1]);
    a[1] = pack_bf16(x[2 * k][2], x[2 * k][3]);
    a[2] = pack_bf16(x[2 * k + 1][0], x[2 * k + 1][1]);
    a[3] = pack_bf16(x[2 * k + 1][2], x[2 * k + 1][3]);
}

// An operand A of 16 M rows and 16 K columns that does not change while a kernel loops: in registers if HELD, which
// saves reading it from shared memory for every product, else read again.
template <int M, int K, bool HELD>
struct FlashOperand {
    uint32_t held[HELD ? M : 1][HELD ? K : 1][4];

    template <typename Tile>
    __device__ __forceinline__ void hold(const Tile& tile) {
        if constexpr (HELD) {
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int k = 0; k < K; k++) tile.load_a(held[m][k], 16 * m, k);
            }
        }
    }
    template <typename Tile>
    __device__ __forceinline__ void get(uint32_t (&a)[4], const Tile& tile, int m, int k) const {
        if constexpr (HELD) {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = held[m][k][i];
        } else {
            tile.load_a(a, 16 * m, k);
        }
    }
};

// All copies that threads of the block have started are there, and all threads have left what came before.
__device__ __forceinline__ void flash_finish_copies() {
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
}

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
