// Symmetric products with mma.sync. One block computes a 128 x 128 tile. Each of its four warps computes 64 x 64, so
// that a fragment from shared memory is used four times. Slices are 64 deep along K; cp_async fetches the next slice
// while one is multiplied.
#include "runtime/linalg/symmetric_product.h"

#include "base/integer.h"
#include "runtime/linalg/symmetric_tile.h"

namespace teon {

namespace {

constexpr int kBlocks = 2;  // per multiprocessor
constexpr int kSide = kSymmetricTile;
constexpr int kWarpSide = kSide / 2;
constexpr int kDepth = kSymmetricDepth;
constexpr int kStages = 2;
constexpr int kSlice = kSide * kDepth;  // elements of a slice of A or B
constexpr size_t kBytes = size_t{2} * kStages * kSlice * sizeof(bf16);
static_assert(kBlocks * (kBytes + 1024) <= 164 * 1024);              // bytes of a multiprocessor of sm_80
static_assert(ResultTile<bf16>::kElements <= 2 * kStages * kSlice);  // the result passes through the same memory

// The place of a warp's part in the tile.
__device__ __forceinline__ int warp_row() { return warp_of_thread() / 2 * kWarpSide; }
__device__ __forceinline__ int warp_column() { return warp_of_thread() % 2 * kWarpSide; }

constexpr int M = kWarpSide / 16;
constexpr int N = kWarpSide / 8;
using WarpSums = float[M][N][4];

// sum += the warp's part of A B. COLUMNS: A and B are stored K x side (A^T A), else side x K (A A^T).
template <typename T, bool COLUMNS>
__device__ __forceinline__ void multiply_slices(WarpSums& sum, T* shared, const SymmetricBatch<T>& p,
                                                const TilePlace& place) {
    using Slice = TensorTile<T, COLUMNS ? kDepth : kSide, COLUMNS ? kSide : kDepth, kSymmetricThreads>;
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
                    slice_of_a(stage).load_a_of_columns(x, 16 * k, warp_row() / 16 + m);
                } else {
                    slice_of_a(stage).load_a(x, warp_row() + 16 * m, k);
                }
            },
            [&](auto& x2, int n, int k) {
                if constexpr (COLUMNS) {
                    right(stage).load_b(x2, 16 * k, warp_column() / 16 + n);
                } else {
                    right(stage).load_b_of_rows(x2, warp_column() + 16 * n, k);
                }
            });
        finish_copies();
    }
}

// Grid: x over tiles, row by row up to the diagonal; y over matrices.
template <typename T, bool COLUMNS>
__global__ void __launch_bounds__(kSymmetricThreads, kBlocks) symmetric_product_kernel(SymmetricBatch<T> p) {
    wait_for_earlier_kernels();
    DYN_SHARED(T, shared);
    int down = 0;
    int across = static_cast<int>(blockIdx.x);
    while (across > down) across -= ++down;
    const TilePlace place(down, across, p.side);
    WarpSums sum = {};
    multiply_slices<T, COLUMNS>(sum, shared, p, place);
    const ResultTile<T> tile{shared};
    if (p.beta != 0.0f) {
        tile.load_addend(p, place);
        __syncthreads();
    }
    tile.finish(sum, p, warp_row(), 16, warp_column() / 8);
    __syncthreads();
    tile.store(p, place);
}

}  // namespace

static int64_t tiles(int side) {
    const int64_t n = ceil_div(side, kSide);
    return n * (n + 1) / 2;
}
int64_t symmetric_mma_pairs(int side, int batch) { return ceil_div(tiles(side) * batch, int64_t{kBlocks}); }

void symmetric_product_mma(const Gemm& g, const Mat& addend, const Stream& stream) {
    const LaunchConfig config(dim3(static_cast<unsigned>(tiles(g.M)), static_cast<unsigned>(g.batch_inner)),
                              kSymmetricThreads, kBytes);
    visit_dtype(g.A.dtype, [&]<typename T>(T) {
        if constexpr (sizeof(T) == 2) {
            const SymmetricBatch<T> batch(g, addend);
            if (g.trans_a) {
                launch<symmetric_product_kernel<T, true>>(config, stream, batch);
            } else {
                launch<symmetric_product_kernel<T, false>>(config, stream, batch);
            }
        }
    });
}

}  // namespace teon
