// Tiles of rows of 16-bit elements in shared memory, copied by cp_async, and their products on tensor cores. For
// kernels whose blocks are one-dimensional and consist of whole warps.
#pragma once

#include "runtime/tensor_cores/tensor_core.h"

namespace teon {

__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_of_thread() { return static_cast<int>(threadIdx.x) / 32; }

// Returns x, but hides from the compiler that the value is the same: values that depend on it are computed where they
// are used, not ahead of loops.
__device__ __forceinline__ int opaque(int x) {
#if defined(__CUDACC__)
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// A tile of ROWS x COLS elements. Chunk c (8 elements, 16 bytes) of row r is stored in the place of chunk c ^ (r % 8).
// Therefore 8 rows of one column of chunks, which ldmatrix reads at once, are in different banks, and so are 8
// neighbouring chunks of one row, which copies write at once.
template <typename T, int ROWS, int COLS, int THREADS>
struct TensorTile {
    static constexpr int kChunks = COLS / 8;
    static constexpr int kElements = ROWS * COLS;
    static_assert(ROWS % 16 == 0 && kChunks % 8 == 0);
    T* memory;

    __device__ __forceinline__ T* chunk(int row, int c) const { return memory + row * COLS + (c ^ (row % 8)) * 8; }

    // All threads of the block call this. Starts to copy `rows` rows of `columns` elements (a multiple of 8), `stride`
    // elements apart; the rest of the tile becomes 0. first is this thread's part of the first rows, from
    // first_chunk().
    __device__ __forceinline__ void start_copy(const T* first, int64_t stride, int rows, int columns = COLS) const {
        constexpr int kStep = THREADS / kChunks;  // a multiple of 8: a thread's chunks are kStep * COLS apart
        const int thread = static_cast<int>(threadIdx.x);
        const int row = thread / kChunks;
        const int column = thread % kChunks;
        T* const to = chunk(row, column);
        if (column * 8 >= columns) rows = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i += kStep) cp_async<16>(to + i * COLS, first + i * stride, row < rows - i);
    }
    static __device__ __forceinline__ const T* first_chunk(const T* rows, int64_t stride) {
        const int thread = static_cast<int>(threadIdx.x);
        return rows + thread / kChunks * stride + thread % kChunks * 8;
    }

    // The tile from row `row` on, a multiple of 16.
    __device__ __forceinline__ TensorTile from(int row) const { return {memory + row * COLS}; }

    // The address of chunk 2 k + c (c = 0 or 1) of row `row` + lane_row, where row is a multiple of 8. The tile is
    // 256-byte aligned, so k only flips bits of an address that depends on the lane alone.
    __device__ __forceinline__ SharedAddress address(int row, int lane_row, int k, int c) const {
        return (SharedAddress(chunk(lane_row, c)) ^ 32 * k) + row * COLS * static_cast<int>(sizeof(T));
    }

    // Loads operand A: rows [row, row + 16), columns [16 k, 16 k + 16).
    __device__ __forceinline__ void load_a(uint32_t (&a)[4], int row, int k) const {
        const int lane = lane_of_thread();
        ldmatrix_x4(a, address(row, lane % 16, k, lane / 16));
    }
    // Loads operand A transposed: its columns are rows [row, row + 16) of the tile, its rows columns [16 m, 16 m + 16).
    __device__ __forceinline__ void load_a_of_columns(uint32_t (&a)[4], int row, int m) const {
        const int lane = lane_of_thread();
        ldmatrix_x4_trans(a, address(row, lane % 8 + lane / 16 * 8, m, lane / 8 % 2));
    }
    // Loads two operands B whose columns are rows [row, row + 16) of the tile: {b[0], b[1]} and {b[2], b[3]}. Their
    // rows are the tile's columns [16 k, 16 k + 16).
    __device__ __forceinline__ void load_b_of_rows(uint32_t (&b)[4], int row, int k) const {
        const int lane = lane_of_thread();
        ldmatrix_x4(b, address(row, lane % 8 + lane / 16 * 8, k, lane / 8 % 2));
    }
    // Loads two operands B whose rows are rows [row, row + 16) of the tile, for columns [16 n, 16 n + 16).
    __device__ __forceinline__ void load_b(uint32_t (&b)[4], int row, int n) const {
        const int lane = lane_of_thread();
        ldmatrix_x4_trans(b, address(row, lane % 16, n, lane / 16));
    }

    // Writes the 16 M rows x COLS of `sum` that this warp holds to the tile's first rows, which no other warp uses.
    // Then copies the first `rows` of these rows, in whole chunks, to global memory, where they are `stride` elements
    // apart.
    template <int M>
    __device__ __forceinline__ void store(T* global, int64_t stride, int rows,
                                          const float (&sum)[M][COLS / 8][4]) const {
        const int lane = lane_of_thread();
        __syncwarp();
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < kChunks; ++n) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    auto* pair = reinterpret_cast<uint32_t*>(chunk(16 * m + 8 * half + lane / 4, n)) + lane % 4;
                    *pair = pack<T>(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16 * M * kChunks / 32; ++i) {
            const int r = i * (32 / kChunks) + lane / kChunks;
            const int c = lane % kChunks;
            if (r < rows) store_vec(global + r * stride + c * 8, load_vec<8>(chunk(r, c)));
        }
    }
};

// sum (16 M x 8 N) += A (16 M x 16 K) B (16 K x 8 N). a(fragment, m, k) and b(two fragments, n / 2, k) load the
// operands. UNROLL steps along K are unrolled. More than 4 would load so far ahead that registers run out; but operands
// that are already in registers can only be indexed if all steps are unrolled.
template <int M, int N, int K, int UNROLL = (K < 4 ? K : 4), typename T = bf16, typename A, typename B>
__device__ __forceinline__ void tile_multiply(float (&sum)[M][N][4], A a, B b) {
#pragma unroll UNROLL
    for (int k = 0; k < K; ++k) {
        uint32_t fragments[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) a(fragments[m], m, k);
#pragma unroll
        for (int n = 0; n < N / 2; ++n) {
            uint32_t right[4];
            b(right, n, k);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma_m16n8k16<T>(sum[m][2 * n], fragments[m], right[0], right[1]);
                mma_m16n8k16<T>(sum[m][2 * n + 1], fragments[m], right[2], right[3]);
            }
        }
    }
}

// Packs columns [16 k, 16 k + 16) of a product's result, which is in registers, as an operand A of the next product.
template <typename T = bf16, int N>
__device__ __forceinline__ void tile_pack_a(uint32_t (&a)[4], const float (&x)[N][4], int k) {
    a[0] = pack<T>(x[2 * k][0], x[2 * k][1]);
    a[1] = pack<T>(x[2 * k][2], x[2 * k][3]);
    a[2] = pack<T>(x[2 * k + 1][0], x[2 * k + 1][1]);
    a[3] = pack<T>(x[2 * k + 1][2], x[2 * k + 1][3]);
}

// Waits until all copies that threads of the block have started are complete and all threads have finished the work
// before this call. A barrier.
__device__ __forceinline__ void finish_copies() {
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
}

}  // namespace teon
