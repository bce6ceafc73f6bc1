// Shared by the kernels for symmetric products: the arguments of a batch, and how 128 threads turn the sums of a tile
// into elements of C. Private to runtime/linalg/symmetric_product*.
#pragma once

#include "runtime/linalg/gemm.h"
#include "runtime/linalg/symmetric_product.h"
#include "runtime/tensor_cores/tensor_tile.h"

namespace teon {

inline constexpr int kSymmetricThreads = 128;

template <typename T>
struct SymmetricBatch {
    T* C;
    const T *addend, *A, *B;
    int64_t ldc, ld_addend, lda, ldb, stride_c, stride_addend, stride_a, stride_b;
    int side, K;
    float alpha, beta;

    SymmetricBatch(const Gemm& g, const Mat& addend)
        : C(data(g.C)),
          addend(data(addend)),
          A(data(g.A)),
          B(data(g.B)),
          ldc(g.C.ld),
          ld_addend(addend.ld),
          lda(g.A.ld),
          ldb(g.B.ld),
          stride_c(g.C.stride_inner),
          stride_addend(addend.stride_inner),
          stride_a(g.A.stride_inner),
          stride_b(g.B.stride_inner),
          side(g.M),
          K(g.K),
          alpha(g.alpha),
          beta(g.beta) {}
    static T* data(const Mat& x) { return static_cast<T*>(x.data); }
};

// A tile of C: of the rows and columns from row0 and column0 on, `rows` and `columns` exist.
struct TilePlace {
    int down, across;  // counted in tiles; across <= down
    int row0, column0, rows, columns;
    __device__ __forceinline__ TilePlace(int down, int across, int side)
        : down(down),
          across(across),
          row0(down * kSymmetricTile),
          column0(across * kSymmetricTile),
          rows(side - row0),
          columns(side - column0) {}
};

// The result in shared memory, on its way from fragments to rows. Chunks (8 elements) are permuted so that neither the
// eight rows that fragments write at once nor the rows that mirrored() reads are in the same banks.
template <typename T>
struct ResultTile {
    static constexpr int kElements = kSymmetricTile * kSymmetricTile;
    static constexpr int kChunks = kSymmetricTile / 8;
    T* memory;

    static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) % kSymmetricThreads; }
    __device__ __forceinline__ T* chunk(int row, int c) const {
        return memory + row * kSymmetricTile + (c ^ ((row + row / 8 * 2) % 8)) * 8;
    }
    __device__ __forceinline__ Vec<uint32_t, 4> bits(int row, int c) const {
        return load_vec<4>(reinterpret_cast<const uint32_t*>(chunk(row, c)));
    }

    // Returns elements [32 i + 8 (l % 4), + 8) of column 8 c + l / 4, for lane l. The rows of the four matrices of
    // ldmatrix are distributed so that each lane receives elements that are contiguous in the transposed tile.
    __device__ __forceinline__ Vec<uint32_t, 4> mirrored(int i, int c) const {
        const int lane = lane_of_thread();
        const int matrix = lane / 8;
        const int row = lane % 8;
        uint32_t r[4];
        ldmatrix_x4_trans(r, SharedAddress(chunk(32 * i + row / 2 * 8 + matrix * 2 + row % 2, c)));
        return {{r[0], r[1], r[2], r[3]}};
    }

    // Starts to copy the addend here. A barrier must follow.
    __device__ __forceinline__ void load_addend(const SymmetricBatch<T>& p, const TilePlace& place) const {
        const T* addend = p.addend + blockIdx.y * p.stride_addend + place.row0 * p.ld_addend + place.column0;
        for (int i = thread(); i < kSymmetricTile * kChunks; i += kSymmetricThreads) {
            const int row = i / kChunks;
            const int c = i % kChunks;
            cp_async<16>(chunk(row, c), addend + row * p.ld_addend + 8 * c, row < place.rows && 8 * c < place.columns);
        }
        cp_async_commit();
        cp_async_wait<0>();
    }

    // Writes alpha sum + beta addend, rounded. sum[m] has rows [first_row + step m, + 16), sum[m][n] chunk first_chunk
    // + n. Each thread reads and writes only its own elements.
    template <int M, int N>
    __device__ __forceinline__ void finish(const float (&sum)[M][N][4], const SymmetricBatch<T>& p, int first_row,
                                           int step, int first_chunk) const {
        const int lane = lane_of_thread();
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < N; ++n) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    T* pair = chunk(first_row + step * m + 8 * half + lane / 4, first_chunk + n) + lane % 4 * 2;
                    float low = p.alpha * sum[m][n][2 * half];
                    float high = p.alpha * sum[m][n][2 * half + 1];
                    if (p.beta != 0.0f) {
                        const Vec<T, 2> add = load_vec<2>(pair);
                        low = fmaf(p.beta, static_cast<float>(add[0]), low);
                        high = fmaf(p.beta, static_cast<float>(add[1]), high);
                    }
                    *reinterpret_cast<uint32_t*>(pair) = pack<T>(low, high);
                }
            }
        }
    }

    // Writes the tile to C, and its mirror image.
    __device__ __forceinline__ void store(const SymmetricBatch<T>& p, const TilePlace& place) const {
        const int lane = lane_of_thread();
        T* C = p.C + blockIdx.y * p.stride_c;
        const bool diagonal = place.down == place.across;
        for (int i = thread(); i < kSymmetricTile * kChunks && !diagonal; i += kSymmetricThreads) {
            const int row = i / kChunks;
            const int c = i % kChunks;
            if (row < place.rows && 8 * c < place.columns)
                store_chunk(C + (place.row0 + row) * p.ldc + place.column0 + 8 * c, bits(row, c));
        }
        constexpr int kParts = kSymmetricTile / 32;
        for (int i = thread() / 32; i < kChunks * kParts; i += kSymmetricThreads / 32) {
            const int c = i / kParts;
            const int part = i % kParts;
            Vec<uint32_t, 4> column = mirrored(part, c);
            const int row = 8 * c + lane / 4;
            const int first = 32 * part + lane % 4 * 8;
            if (diagonal) column = join_halves(bits(row, first / 8), column, row, first);
            if (row < place.columns && first < place.rows)
                store_chunk(C + (place.column0 + row) * p.ldc + place.row0 + first, column);
        }
    }

private:
    // Returns elements [first, first + 8) of a row of a tile on the diagonal: up to the diagonal those of `below`, then
    // those of `mirrored`. Sums above the diagonal may be rounded differently.
    static __device__ __forceinline__ Vec<uint32_t, 4> join_halves(const Vec<uint32_t, 4>& below,
                                                                   const Vec<uint32_t, 4>& mirrored, int row,
                                                                   int first) {
        Vec<uint32_t, 4> bits;
        FOR_VEC(j, 4) {
            const int at = first + 2 * j;
            const uint32_t mask = (at <= row ? 0xffffu : 0) | (at < row ? 0xffff0000u : 0);
            bits[j] = (below[j] & mask) | (mirrored[j] & ~mask);
        }
        return bits;
    }
    static __device__ __forceinline__ void store_chunk(T* to, const Vec<uint32_t, 4>& bits) {
        store_vec(reinterpret_cast<uint32_t*>(to), bits);
    }
};

}  // namespace teon
