// Symmetric products with the instructions of sm_90a (runtime/tensor_cores/warpgroup.h). A block computes two tiles of
// 128 x 128, one above the other: 256 rows and 128 columns of C. One thread of the producer copies slices of A and B,
// 64 deep along K, into a ring of four stages. Each of the two consumers computes one of the tiles; both read the same
// slice of B. The two blocks of a cluster have the same rows, and neighbouring columns. Each copies half of A's slice,
// to both. So each byte that is read from the L2 cache serves 128 FLOPs, twice as many as with one tile to a block. A
// consumer whose tile is above the diagonal, or outside of C, only says when it could have read its slices. Named
// barriers 1 and 2 join the warps of a consumer at the end.
#include "runtime/linalg/symmetric_product.h"

#include "base/integer.h"
#include "runtime/linalg/symmetric_tile.h"
#include "runtime/tensor_cores/warpgroup_ring.h"

namespace teon {

namespace {

// The two tiles of a block. COLUMNS: A and B are stored K x side (A^T A), else side x K (A A^T).
template <typename T, bool COLUMNS>
struct TilePair {
    static constexpr int kSide = kSymmetricTile;
    static constexpr int kDepth = kSymmetricDepth;
    static constexpr int kStages = 4;
    static constexpr int kSlice = kSide * kDepth;  // elements of a slice of one tile's A, or of B
    static constexpr int kSliceBytes = kSlice * static_cast<int>(sizeof(T));
    static constexpr int kLeft = kHopperConsumers * kStages;  // slices of A
    static constexpr size_t kBytes = static_cast<size_t>(kLeft + kStages) * kSliceBytes;
    static_assert(kDepth == kTensorTileColumns && kSide == 2 * kTensorTileColumns);
    // A result passes through its consumer's slices of A.
    static_assert(ResultTile<T>::kElements <= kStages * kSlice);
    static constexpr int kBlocks = 2;            // of a cluster
    static_assert(kBlocks == kHopperConsumers);  // each copies the slices of A of one consumer
    using Rings = HopperRings<kStages, 1, kBlocks>;
    using Stage = HopperStage<kStages>;
    using TileSums = float[2][kSide / 8][4];  // of a consumer: rows [0, 64) and [64, 128) of its tile

    const SymmetricBatch<T>& p;
    T* shared;
    Rings rings;
    int down = 0, across = static_cast<int>(blockIdx.x);  // of the upper tile, in tiles

    __device__ __forceinline__ TilePair(const SymmetricBatch<T>& p, T* shared, uint64_t* barriers)
        : p(p), shared(shared), rings{barriers} {
        for (; across >= down + kHopperConsumers; down += kHopperConsumers) across -= down + kHopperConsumers;
    }
    __device__ __forceinline__ int batch() const { return static_cast<int>(blockIdx.y); }

    // Slices in shared memory: those of each consumer's A, stage by stage, then those of B.
    __device__ __forceinline__ T* slice_of_a(int consumer, int stage) const {
        return shared + (consumer * kStages + stage) * kSlice;
    }
    __device__ __forceinline__ T* slice_of_b(int stage) const { return shared + (kLeft + stage) * kSlice; }

    // Starts to copy the rows of op(A), or columns of op(B), from `begin` on, for [k, k + kDepth), to this block or to
    // both. Elements outside of A and B are 0.
    template <bool BOTH>
    __device__ __forceinline__ void copy(T* slice, const TensorMap& map, int begin, int k, uint64_t* barrier) const {
        const auto start = [&](SharedAddress tile, int column, int row) {
            if constexpr (BOTH) {
                tensor_copy_to_blocks(tile, map, column, row, batch(), barrier, kBlocks);
            } else {
                tensor_copy(tile, map, column, row, batch(), barrier);
            }
        };
        const SharedAddress to(slice);
        if constexpr (COLUMNS) {
            start(to, begin, k);
            start(to + kSliceBytes / 2, begin + kTensorTileColumns, k);
        } else {
            start(to, k, begin);
        }
    }

    __device__ __forceinline__ void produce(const TensorMap& A, const TensorMap& B) const {
        const int block = block_of_cluster();
        Stage stage;
        for (int k = 0; k < p.K && threadIdx.x == 0; k += kDepth, stage.advance()) {
            uint64_t* const full = rings.full(stage.index);
            mbarrier_wait(rings.empty(stage.index), stage.parity ^ 1);
            mbarrier_expect(full, (kHopperConsumers + 1) * kSliceBytes);
            copy<true>(slice_of_a(block, stage.index), A, (down + block) * kSide, k, full);
            copy<false>(slice_of_b(stage.index), B, across * kSide, k, full);
        }
        __syncwarp();
        cluster_arrive();
    }

    // sum += the products of a stage's slices.
    __device__ __forceinline__ void multiply(TileSums& sum, int consumer, int stage) const {
        const TileOperand a(SharedAddress(slice_of_a(consumer, stage)));
        const TileOperand b(SharedAddress(slice_of_b(stage)), COLUMNS ? kSliceBytes / 2 : 0);
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                if constexpr (COLUMNS) {
                    const int row = 16 * k * 2 * kTensorTileColumns;
                    warpgroup_multiply_transposed<T>(sum[m], a + (m * (kSliceBytes / 2) + row), b + row, true);
                } else {
                    warpgroup_multiply<T>(sum[m], a + (m * (kSliceBytes / 2) + 32 * k), b + 32 * k, true);
                }
            }
        }
        warpgroup_commit();
    }

    // One slice's products run while the next slice is waited for.
    __device__ __forceinline__ void multiply_all(TileSums& sum, int consumer) const {
        Stage now;
        Stage before;
        for (int k = 0; k < p.K; k += kDepth, now.advance()) {
            mbarrier_wait(rings.full(now.index), now.parity);
            warpgroup_begin();
            multiply(sum, consumer, now.index);
            if (k > 0) {
                warpgroup_wait<1>();
                rings.arrive_empty(before.index);
                before.advance();
            }
        }
        warpgroup_wait<0>(sum[0]);
        warpgroup_wait<0>(sum[1]);
    }
    __device__ __forceinline__ void skip_all() const {
        Stage now;
        for (int k = 0; k < p.K; k += kDepth, now.advance()) {
            mbarrier_wait(rings.full(now.index), now.parity);
            rings.arrive_empty(now.index);
        }
    }

    __device__ __forceinline__ void consume() const {
        const int consumer = hopper_consumer();
        const TilePlace place(down + consumer, across, p.side);
        if (place.across > place.down || place.rows <= 0) {
            skip_all();
            return cluster_arrive();
        }
        TileSums sum = {};
        multiply_all(sum, consumer);
        cluster_arrive();

        const auto join = [&] { named_barrier_wait(1 + consumer, kWarpgroupThreads); };
        const ResultTile<T> tile{slice_of_a(consumer, 0)};
        join();  // all four warps have read their slices
        if (p.beta != 0.0f) {
            tile.load_addend(p, place);
            join();
        }
        tile.finish(sum, p, 16 * hopper_warp(), kSide / 2, 0);
        join();
        tile.store(p, place);
    }
};

// Grid: x over pairs of tiles, row by row up to the diagonal; y over matrices.
template <typename T, bool COLUMNS>
__global__ void TEON_CLUSTER(2) __launch_bounds__(kHopperThreads, 1)
    symmetric_product_hopper_kernel(SymmetricBatch<T> p, const __grid_constant__ TensorMap A,
                                    const __grid_constant__ TensorMap B) {
    wait_for_earlier_kernels();
    if constexpr (kWarpgroups) {
        using Pair = TilePair<T, COLUMNS>;
        SHARED(uint64_t, barriers, Pair::Rings::kCount);
        DYN_SHARED(T, shared);
        const Pair pair(p, shared, barriers);
        pair.rings.init(1);
        hopper_roles<24>([&] { pair.produce(A, B); }, [&] { pair.consume(); });
        cluster_wait();
    }
}

template <typename T, bool COLUMNS>
void launch_product(const Gemm& g, const Mat& addend, const Stream& stream) {
    using Pair = TilePair<T, COLUMNS>;
    const auto map = [&](const Mat& x) {
        const int64_t rows = COLUMNS ? g.K : g.M;
        const int64_t columns = COLUMNS ? g.M : g.K;
        const int64_t stride = g.batch_inner > 1 ? x.stride_inner : rows * x.ld;
        return tensor_map(x.data, g.batch_inner, rows, columns, stride, x.ld, COLUMNS ? Pair::kDepth : Pair::kSide);
    };
    const dim3 grid(static_cast<unsigned>(symmetric_hopper_pairs(g.M, 1)), static_cast<unsigned>(g.batch_inner));
    launch<symmetric_product_hopper_kernel<T, COLUMNS>>({grid, kHopperThreads, Pair::kBytes}, stream,
                                                        SymmetricBatch<T>(g, addend), map(g.A), map(g.B));
}

}  // namespace

bool symmetric_hopper_has_code() {
    static const bool has_code = has_warpgroup_code<symmetric_product_hopper_kernel<bf16, false>>();
    return has_code;
}

bool symmetric_hopper_supports(const Gemm& g) {
    constexpr int64_t kMostStride = (int64_t{1} << 40) / static_cast<int64_t>(sizeof(bf16));
    const auto has_map = [&](const Mat& x) {
        const int64_t rows = g.trans_a ? g.K : g.M;
        const int64_t stride = g.batch_inner > 1 ? x.stride_inner : rows * x.ld;
        return stride > 0 && stride < kMostStride && stride % x.ld == 0;
    };
    return g.K > 0 && has_map(g.A) && has_map(g.B);
}

int64_t symmetric_hopper_pairs(int side, int batch) {
    const int64_t n = ceil_div(side, kSymmetricTile);
    const int64_t rows = ceil_div(n, kHopperConsumers);
    return rows * (rows + 1) * batch;  // even
}

void symmetric_product_hopper(const Gemm& g, const Mat& addend, const Stream& stream) {
    visit_dtype(g.A.dtype, [&]<typename T>(T) {
        if constexpr (sizeof(T) == 2) {
            if (g.trans_a) {
                launch_product<T, true>(g, addend, stream);
            } else {
                launch_product<T, false>(g, addend, stream);
            }
        }
    });
}

}  // namespace teon
