// One block computes a 128 x 128 tile. Each of its four warps computes 64 x 64, so that a fragment from shared memory
// is used four times. Slices are 64 deep along K; cp_async fetches the next slice while one is multiplied.
#include "runtime/symmetric_product.h"

#include "base/integer.h"
#include "runtime/tensor_tile.h"

namespace teon {

namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 2;  // per multiprocessor
constexpr int kSide = kSymmetricTile;
constexpr int kWarpSide = kSide / 2;
constexpr int kDepth = 64;
constexpr int kStages = 2;
constexpr int kSlice = kSide * kDepth;  // elements of a slice of A or B
constexpr size_t kBytes = size_t{2} * kStages * kSlice * sizeof(bf16);
static_assert(kBlocks * (kBytes + 1024) <= 164 * 1024);  // bytes of a multiprocessor of sm_80
static_assert(kSide * kSide <= 2 * kStages * kSlice);    // the result passes through the same memory

template <typename T>
struct SymmetricBatch {
    T* C;
    const T *addend, *A, *B;
    int64_t ldc, ld_addend, lda, ldb, stride_c, stride_addend, stride_a, stride_b;
    int side, K;
    float alpha, beta;
};

// The result in shared memory, on its way from fragments to rows. Chunks (8 elements) are permuted so that neither the
// eight rows that fragments write at once nor the rows that mirrored() reads are in the same banks.
template <typename T>
struct ResultTile {
    static constexpr int kChunks = kSide / 8;
    T* memory;
    __device__ __forceinline__ T* chunk(int row, int c) const {
        return memory + row * kSide + (c ^ ((row + row / 8 * 2) % 8)) * 8;
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
};

template <typename T>
__device__ __forceinline__ void store_chunk(T* to, const Vec<uint32_t, 4>& bits) {
    store_vec(reinterpret_cast<uint32_t*>(to), bits);
}

// A block's tile of C: of the rows and columns from row0 and column0 on, `rows` and `columns` exist.
struct TilePlace {
    int down = 0;
    int across = static_cast<int>(blockIdx.x);  // tiles are counted row by row, up to the diagonal
    int row0, column0, rows, columns;
    // Of the warp's part in the tile.
    int warp_row = warp_of_thread() / 2 * kWarpSide;
    int warp_column = warp_of_thread() % 2 * kWarpSide;
    __device__ __forceinline__ explicit TilePlace(int side) {
        while (across > down) across -= ++down;
        row0 = down * kSide;
        column0 = across * kSide;
        rows = side - row0;
        columns = side - column0;
    }
};

constexpr int M = kWarpSide / 16;
constexpr int N = kWarpSide / 8;
using WarpSums = float[M][N][4];

// sum += the warp's part of A B. COLUMNS: A and B are stored K x side (A^T A), else side x K (A A^T).
template <typename T, bool COLUMNS>
__device__ __forceinline__ void multiply_slices(WarpSums& sum, T* shared, const SymmetricBatch<T>& p,
                                                const TilePlace& place) {
    using Slice = TensorTile<T, COLUMNS ? kDepth : kSide, COLUMNS ? kSide : kDepth, kThreads>;
    auto slice_of_a = [&](int stage) { return Slice{shared + 2 * stage * kSlice}; };
    auto right = [&](int stage) { return Slice{shared + (2 * stage + 1) * kSlice}; };
    const int64_t a0 = COLUMNS ? place.row0 : place.row0 * p.lda;
    const int64_t b0 = COLUMNS ? place.column0 : place.column0 * p.ldb;
    const T* a = Slice::first_chunk(p.A + blockIdx.y * p.stride_a + a0, p.lda);
    const T* b = Slice::first_chunk(p.B + blockIdx.y * p.stride_b + b0, p.ldb);
    auto fetch = [&](int k, int stage) {
        const int depth = p.K - k;
        slice_of_a(stage).start_copy(a, p.lda, COLUMNS ? depth : place.rows, COLUMNS ? place.rows : depth);
        right(stage).start_copy(b, p.ldb, COLUMNS ? depth : place.columns, COLUMNS ? place.columns : depth);
        a += COLUMNS ? kDepth * p.lda : kDepth;
        b += COLUMNS ? kDepth * p.ldb : kDepth;
    };
    fetch(0, 0);
    finish_copies();
    for (int k0 = 0, stage = 0; k0 < p.K; k0 += kDepth, stage ^= 1) {
        if (k0 + kDepth < p.K) fetch(k0 + kDepth, stage ^ 1);
        tile_multiply<M, N, kDepth / 16, kDepth / 16, T>(
            sum,
            [&](auto& x, int m, int k) {
                if constexpr (COLUMNS) {
                    slice_of_a(stage).load_a_of_columns(x, 16 * k, place.warp_row / 16 + m);
                } else {
                    slice_of_a(stage).load_a(x, place.warp_row + 16 * m, k);
                }
            },
            [&](auto& x2, int n, int k) {
                if constexpr (COLUMNS) {
                    right(stage).load_b(x2, 16 * k, place.warp_column / 16 + n);
                } else {
                    right(stage).load_b_of_rows(x2, place.warp_column + 16 * n, k);
                }
            });
        finish_copies();
    }
}

// tile = alpha sum + beta addend, rounded.
template <typename T>
__device__ __forceinline__ void finish_tile(const ResultTile<T>& tile, const WarpSums& sum, const SymmetricBatch<T>& p,
                                            const TilePlace& place) {
    constexpr int kChunks = ResultTile<T>::kChunks;
    const int lane = lane_of_thread();
    if (p.beta != 0.0f) {
        const T* addend = p.addend + blockIdx.y * p.stride_addend + place.row0 * p.ld_addend + place.column0;
        for (int i = static_cast<int>(threadIdx.x); i < kSide * kChunks; i += kThreads) {
            const int row = i / kChunks;
            const int c = i % kChunks;
            cp_async<16>(tile.chunk(row, c), addend + row * p.ld_addend + 8 * c,
                         row < place.rows && 8 * c < place.columns);
        }
        finish_copies();
    }
    // Each thread reads and writes only its own elements.
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                T* pair =
                    tile.chunk(place.warp_row + 16 * m + 8 * half + lane / 4, place.warp_column / 8 + n) + lane % 4 * 2;
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
    __syncthreads();
}

// Writes the tile to C, and its mirror image.
template <typename T>
__device__ __forceinline__ void store_tile(const ResultTile<T>& tile, const SymmetricBatch<T>& p,
                                           const TilePlace& place) {
    constexpr int kChunks = ResultTile<T>::kChunks;
    const int lane = lane_of_thread();
    T* C = p.C + blockIdx.y * p.stride_c;
    const bool diagonal = place.down == place.across;
    for (int i = static_cast<int>(threadIdx.x); i < kSide * kChunks && !diagonal; i += kThreads) {
        const int row = i / kChunks;
        const int c = i % kChunks;
        if (row < place.rows && 8 * c < place.columns)
            store_chunk(C + (place.row0 + row) * p.ldc + place.column0 + 8 * c, tile.bits(row, c));
    }
    for (int i = warp_of_thread(); i < kChunks * kSide / 32; i += kThreads / 32) {
        const int c = i / (kSide / 32);
        const int part = i % (kSide / 32);
        Vec<uint32_t, 4> bits = tile.mirrored(part, c);
        const int row = 8 * c + lane / 4;
        const int column = 32 * part + lane % 4 * 8;
        if (diagonal) {  // sums above it may be rounded differently: that half is mirrored
            const Vec<uint32_t, 4> below = tile.bits(row, column / 8);
            FOR_VEC(j, 4) {
                const int first = column + 2 * j;
                const uint32_t mask = (first <= row ? 0xffffu : 0) | (first < row ? 0xffff0000u : 0);
                bits[j] = (below[j] & mask) | (bits[j] & ~mask);
            }
        }
        if (row < place.columns && column < place.rows)
            store_chunk(C + (place.column0 + row) * p.ldc + place.row0 + column, bits);
    }
}

// Grid: x over tiles, y over matrices.
template <typename T, bool COLUMNS>
__global__ void __launch_bounds__(kThreads, kBlocks) symmetric_product_kernel(SymmetricBatch<T> p) {
    wait_for_earlier_kernels();
    DYN_SHARED(T, shared);
    const TilePlace place(p.side);
    WarpSums sum = {};
    multiply_slices<T, COLUMNS>(sum, shared, p, place);
    const ResultTile<T> tile{shared};
    finish_tile(tile, sum, p, place);
    store_tile(tile, p, place);
}

int64_t tiles_of(int side) {
    const int64_t n = ceil_div(side, kSide);
    return n * (n + 1) / 2;
}

template <typename T>
void launch_product(const Gemm& g, const Mat& addend, const Stream& stream) {
    auto data = [](const Mat& x) { return static_cast<T*>(x.data); };
    const SymmetricBatch<T> batch{
        data(g.C),        data(addend),        data(g.A),        data(g.B),        g.C.ld, addend.ld, g.A.ld,  g.B.ld,
        g.C.stride_inner, addend.stride_inner, g.A.stride_inner, g.B.stride_inner, g.M,    g.K,       g.alpha, g.beta};
    const LaunchConfig config(dim3(static_cast<unsigned>(tiles_of(g.M)), static_cast<unsigned>(g.batch_inner)),
                              kThreads, kBytes);
    if (g.trans_a) {
        launch<symmetric_product_kernel<T, true>>(config, stream, batch);
    } else {
        launch<symmetric_product_kernel<T, false>>(config, stream, batch);
    }
}

}  // namespace

bool symmetric_product_supports(const Gemm& g, const Mat& addend) {
    auto in_chunks = [&](const Mat& x) {
        return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.ld % 8 == 0 &&
               (g.batch_inner == 1 || x.stride_inner % 8 == 0);
    };
    const bool one_transposed = g.trans_a != g.trans_b;
    const bool whole_chunks = g.M % 8 == 0 && (g.trans_a || g.K % 8 == 0);
    return g.symmetric && size_of(g.A.dtype) == 2 && g.C.dtype == g.A.dtype && one_transposed && whole_chunks &&
           g.batch_outer == 1 && g.batch_inner <= 65535 && in_chunks(g.A) && in_chunks(g.B) && in_chunks(g.C) &&
           (g.beta == 0.0f || in_chunks(addend));
}

bool symmetric_product_pays(int side, int batch, int multiprocessors) {
    const int64_t n = ceil_div(side, kSide);
    auto rounds = [&](int64_t tiles) { return ceil_div(tiles * batch, int64_t{multiprocessors}); };
    return 4 * rounds(tiles_of(side)) <= 3 * rounds(n * n);
}

void symmetric_product(const Gemm& g, const Mat& addend, const Stream& stream) {
    CHECK(symmetric_product_supports(g, addend), "symmetric product: {} x {} x {} (M x N x K), {} to {}", g.M, g.N, g.K,
          name_of(g.A.dtype), name_of(g.C.dtype));
    visit_dtype(g.A.dtype, [&]<typename T>(T) {
        if constexpr (sizeof(T) == 2) launch_product<T>(g, addend, stream);
    });
}

}  // namespace teon
