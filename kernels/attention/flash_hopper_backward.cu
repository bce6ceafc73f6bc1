// The backward pass of flash attention in two passes with the instructions of sm_90a. Blocks are organized as in
// flash_hopper.cu. The resident tiles have 128 rows, 64 for each consumer; the streamed tiles have 64. The
// scores are in the registers in which the next product expects its left operand:
//
//     dK, dV    S^T = K Q^T, dP^T = V dO^T; dV += P^T dO, dK += dS^T Q    one block per tile of keys
//     dQ        S = Q K^T, dP = dO V^T; dQ += dS K                        one block per tile of queries
//
// The products with the scores of one tile run together with those that compute the scores of the next.
#include "kernels/attention/flash_hopper_backward.h"

#include "kernels/attention/flash_backward.h"
#include "kernels/attention/flash_hopper_tiles.h"

namespace teon {

namespace {

// Shared by both passes: two resident tiles for each consumer, and two streamed tiles per stage.
template <int HS>
struct HopperBackward {
    static constexpr int kRows = 64;
    static constexpr int kResident = kRows * kHopperConsumers;  // rows of the resident tiles
    static constexpr int kStages = HS == 64 ? 6 : 3;
    static constexpr int kFragments = kRows / 8;
    using Tile = HopperTile<kRows, HS>;
    using Barriers = HopperBarriers<kStages, 1>;
    using Stage = HopperStage<kStages>;
    using Scores = float[1][kFragments][4];
    using Packed = uint32_t[kRows / 16][4];
    using Gradient = float[1][HS / 8][4];
    // RowStats of a streamed tile, in two arrays: a lane reads one of them for two neighbouring queries in one access.
    struct Stats {
        float lse2[kRows], D[kRows];
    };
    static constexpr int kTiles = 2 * kHopperConsumers + 2 * kStages;
    // After the tiles, per stage: statistics and first keys of the streamed queries.
    static constexpr size_t kTileBytes = static_cast<size_t>(kTiles) * Tile::kBytes;
    static constexpr size_t kBytes = kTileBytes + kStages * (sizeof(Stats) + kRows * sizeof(int));

    const FlashShape<HS>& s;
    bf16* shared;
    Barriers barriers;
    int b = static_cast<int>(blockIdx.z), head = static_cast<int>(blockIdx.y);

    __device__ __forceinline__ bf16* memory(int tile) const {
        return shared + tile * (Tile::kBytes / static_cast<int>(sizeof(bf16)));
    }
    // The index of a consumer's resident tile or a stage's streamed tile: keys or queries (0), values or dO (1).
    static __device__ __forceinline__ int resident_tile(int consumer, int which) { return 2 * consumer + which; }
    static __device__ __forceinline__ int streamed_tile(int stage, int which) {
        return 2 * (kHopperConsumers + stage) + which;
    }
    __device__ __forceinline__ Tile tile(int index) const { return {SharedAddress(memory(index))}; }
    __device__ __forceinline__ Stats& stats(int stage) const { return reinterpret_cast<Stats*>(memory(kTiles))[stage]; }
    __device__ __forceinline__ int* first_keys(int stage) const {
        return reinterpret_cast<int*>(&stats(kStages)) + stage * kRows;
    }

    __device__ __forceinline__ void load(int index, const TensorMap& map, int of_head, int row,
                                         uint64_t* barrier) const {
        tile(index).load(map, of_head, row, b, barrier);
    }
    __device__ __forceinline__ void load_keys(int index, const TensorMap& qkv, int kv, int row,
                                              uint64_t* barrier) const {
        load(index, qkv, s.NH + kv, row, barrier);
        load(index + 1, qkv, s.NH + s.NKV + kv, row, barrier);
    }
    __device__ __forceinline__ void load_queries(int index, const TensorMap& qkv, const TensorMap& dout, int h, int row,
                                                 uint64_t* barrier) const {
        load(index, qkv, h, row, barrier);
        load(index + 1, dout, h, row, barrier);
    }

    // x = A B^T of a resident tile A and a streamed tile B.
    __device__ __forceinline__ void multiply_rows(Scores& x, int stage, int which) const {
        const Tile a = tile(resident_tile(hopper_consumer(), which));
        const Tile b = tile(streamed_tile(stage, which));
#pragma unroll
        for (int k = 0; k < HS / 16; ++k) warpgroup_multiply(x[0], a.rows(k), b.rows(k), k > 0);
        warpgroup_commit();
    }
    // sum += packed scores times a streamed tile.
    __device__ __forceinline__ void multiply_columns(Gradient& sum, const Packed& packed, int stage, int which) const {
        const Tile b = tile(streamed_tile(stage, which));
#pragma unroll
        for (int k = 0; k < kRows / 16; ++k) warpgroup_multiply_columns(sum[0], packed[k], b.columns(k), true);
    }
    static __device__ __forceinline__ void pack_scores(Packed& packed, const Scores& x) {
#pragma unroll
        for (int k = 0; k < kRows / 16; ++k) tile_pack_a(packed[k], x[0], k);
    }
    __device__ __forceinline__ void wait_for_tile(const Stage& stage) const {
        mbarrier_wait(barriers.full(stage.index), stage.parity);
    }
    // Starts P and dP of the streamed tile of `stage`.
    __device__ __forceinline__ void start_scores(Scores& p, Scores& dp, int stage) const {
        warpgroup_begin();
        multiply_rows(p, stage, 0);
        multiply_rows(dp, stage, 1);
    }
    // A consumer's loop over the streamed tiles. scores(groups, stage, i) waits for P and dP of tile i while up to
    // `groups` later groups run; pack() converts the scores to operands; gradients(stage) starts their products, for
    // which wait() waits.
    //
    // Here the products of a tile run together with the next tile's P and dP, which takes registers for both.
    template <typename Score, typename Pack, typename Multiply, typename Wait>
    __device__ __forceinline__ void run_overlapped(int tiles, Scores& p, Scores& dp, Score scores, Pack pack,
                                                   Multiply gradients, Wait wait) const {
        Stage stage;
        int previous = 0;
        const auto advance_to = [&](int tile) {
            previous = stage.index;
            stage.advance();
            if (tile < tiles) wait_for_tile(stage);
        };
        mbarrier_wait(barriers.resident(), 0);
        wait_for_tile(stage);
        start_scores(p, dp, stage.index);
        scores(Constant<0>{}, stage.index, 0);
        pack();
        advance_to(1);
        for (int i = 1; i < tiles; ++i) {
            start_scores(p, dp, stage.index);
            gradients(previous);
            warpgroup_commit();
            scores(Constant<1>{}, stage.index, i);
            const int read = previous;
            advance_to(i + 1);  // its loop keeps wait() behind the scores, as in flash_hopper.cu
            wait();
            barriers.arrive_empty(read);
            pack();
        }
        warpgroup_begin();
        gradients(previous);
        warpgroup_commit();
        wait();
    }
    // The same, one after the other.
    template <typename Score, typename Pack, typename Multiply, typename Wait>
    __device__ __forceinline__ void run_in_turn(int tiles, Scores& p, Scores& dp, Score scores, Pack pack,
                                                Multiply gradients, Wait wait) const {
        Stage stage;
        const auto multiply_gradients = [&] {
            warpgroup_begin();
            gradients(stage.index);
            warpgroup_commit();
            wait();
        };
        mbarrier_wait(barriers.resident(), 0);
        wait_for_tile(stage);
        start_scores(p, dp, stage.index);
        scores(Constant<0>{}, stage.index, 0);
        pack();
        for (int i = 1; i < tiles; ++i) {
            multiply_gradients();
            const int previous = stage.index;
            stage.advance();
            wait_for_tile(stage);
            start_scores(p, dp, stage.index);
            scores(Constant<0>{}, stage.index, i);
            barriers.arrive_empty(previous);
            pack();
        }
        multiply_gradients();
    }
    // Writes rows of the packed gradient, through the memory of resident tile `which`, and their column sums.
    __device__ __forceinline__ void store(bf16* dqkv, float* partial, int of_head, int row, int which,
                                          const Gradient& x) const {
        const int first = row + kRows * hopper_consumer() + 16 * hopper_warp();
        flash_column_sums(partial, s, b, first, of_head, x);
        hopper_store<kRows, HS>(s.packed(dqkv, b, first, of_head), s.packed_row, s.T - first,
                                memory(resident_tile(hopper_consumer(), which)), 16 * hopper_warp(), x);
    }
};

template <int HS>
struct HopperKeyGradient : HopperBackward<HS> {
    using Base = HopperBackward<HS>;
    using Base::b, Base::s, Base::barriers, Base::kRows, Base::kStages, Base::head;
    static constexpr int kFills = 2;  // arrivals that fill a stage: for the copies and for the statistics
    const int* first_key;
    int key, end;  // queries [key, end) see a key of the block

    __device__ __forceinline__ HopperKeyGradient(const FlashShape<HS>& s, bf16* shared, uint64_t* barriers)
        : Base{s, shared, {{barriers}}} {
        first_key = s.first_key ? s.first_key + static_cast<int64_t>(b) * s.T : nullptr;
        key = static_cast<int>(blockIdx.x) * Base::kResident;  // in order: the longest blocks start first
        const int last = key + Base::kResident < s.T ? key + Base::kResident - 1 : s.T - 1;
        end = first_key ? readers_end(first_key, last, s.T) : s.T;
    }

    // Calls f(query head, query) for each streamed tile.
    template <typename F>
    __device__ __forceinline__ void for_tiles(F f) const {
#pragma unroll 1
        for (int h = head * s.group; h < (head + 1) * s.group; ++h) {
#pragma unroll 1
            for (int query = key; query < end; query += kRows) f(h, query);
        }
    }

    __device__ __forceinline__ void produce(const TensorMap& qkv, const TensorMap& dout, const RowStats* stats) const {
        typename Base::Stage stage;
        if (threadIdx.x == 0) {
            mbarrier_expect(barriers.resident(), 2 * kHopperConsumers * Base::Tile::kBytes);
            for (int c = 0; c < kHopperConsumers; ++c)
                this->load_keys(this->resident_tile(c, 0), qkv, head, key + c * kRows, barriers.resident());
            for_tiles([&](int h, int query) {
                uint64_t* const full = barriers.full(stage.index);
                mbarrier_wait(barriers.empty(stage.index), stage.parity ^ 1);
                mbarrier_expect(full, 2 * Base::Tile::kBytes);
                this->load_queries(this->streamed_tile(stage.index, 0), qkv, dout, h, query, full);
                stage.advance();
            });
        } else if (warp_of_thread() == 1) {  // statistics are 0 in rows beyond T
            for_tiles([&](int h, int query) {
                mbarrier_wait(barriers.empty(stage.index), stage.parity ^ 1);
                const int64_t begin = s.row(b, h, 0);
#pragma unroll 1
                for (int row = lane_of_thread(); row < kRows; row += 32) {
                    const int t = query + row;
                    const RowStats of_row = t < s.T ? stats[begin + t] : RowStats{};
                    this->stats(stage.index).lse2[row] = of_row[0];
                    this->stats(stage.index).D[row] = of_row[1];
                    if (first_key) this->first_keys(stage.index)[row] = t < s.T ? first_key[t] : 0;
                }
                __syncwarp();
                if (lane_of_thread() == 0) mbarrier_arrive(barriers.full(stage.index));
                stage.advance();
            });
        }
    }

    __device__ __forceinline__ void consume(bf16* dqkv, float* partial) const {
        const int first = key + kRows * hopper_consumer() + 16 * hopper_warp();
        const int last = first + 15;
        int query = key;
        typename Base::Gradient dk = {};
        typename Base::Gradient dv = {};
        typename Base::Scores p;
        typename Base::Scores ds;
        typename Base::Packed packed_p;
        typename Base::Packed packed_ds;
        const auto scores = [&]<int GROUPS>(Constant<GROUPS>, int stage, int i) {
            const auto& rows = this->stats(stage);
            const int* const first_keys = first_key ? this->first_keys(stage) : nullptr;
            if (i > 0) query = query + kRows < end ? query + kRows : key;
            const int last_row = query + kRows < s.T ? kRows - 1 : s.T - 1 - query;
            warpgroup_wait<1 + GROUPS>(p[0]);
            for_columns<1, Base::kFragments>(
                p, rows.lse2, [&](float& x, float lse2) { x = exp2_fast(fmaf(x, s.scale_log2, -lse2)); });
            if (query < last || (first_key && first_keys[last_row] > first))
                mask_transposed(p, first, query, first_keys, first_keys != nullptr);
            warpgroup_wait<GROUPS>(ds[0]);
            for_columns<1, Base::kFragments>(ds, rows.D, [&](float& x, float D) { x -= D; });
            multiply_scores(ds[0], p[0]);
        };
        const auto pack = [&] {
            this->pack_scores(packed_p, p);
            this->pack_scores(packed_ds, ds);
        };
        const auto gradients = [&](int stage) {
            this->multiply_columns(dv, packed_p, stage, 1);
            this->multiply_columns(dk, packed_ds, stage, 0);
        };
        const auto wait = [&] {
            warpgroup_wait<0>(dv[0]);
            warpgroup_wait<0>(dk[0]);
        };
        const int tiles = s.group * ceil_div(end - key, kRows);
        if constexpr (HS == 64)
            this->run_overlapped(tiles, p, ds, scores, pack, gradients, wait);
        else
            this->run_in_turn(tiles, p, ds, scores, pack, gradients, wait);
        flash_scale(dk, s.scale);
        named_barrier_wait(1 + hopper_consumer(), kWarpgroupThreads);  // all four warps have read the resident tiles
        this->store(dqkv, partial, s.NH + head, key, 0, dk);
        this->store(dqkv, partial, s.NH + s.NKV + head, key, 1, dv);
    }
};

template <int HS>
struct HopperQueryGradient : HopperBackward<HS> {
    using Base = HopperBackward<HS>;
    using Base::b, Base::s, Base::barriers, Base::kRows, Base::kStages, Base::head;
    static constexpr int kFills = 1;
    int query, begin, end;  // keys [begin, end)

    __device__ __forceinline__ HopperQueryGradient(const FlashShape<HS>& s, bf16* shared, uint64_t* barriers)
        : Base{s, shared, {{barriers}}} {
        query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Base::kResident;  // the longest blocks start first
        end = query + Base::kResident < s.T ? query + Base::kResident : s.T;
        begin = s.first_key_of_tile(b, query) / kRows * kRows;
    }

    __device__ __forceinline__ void produce(const TensorMap& qkv, const TensorMap& dout, const RowStats*) const {
        if (threadIdx.x != 0) return;
        mbarrier_expect(barriers.resident(), 2 * kHopperConsumers * Base::Tile::kBytes);
        for (int c = 0; c < kHopperConsumers; ++c)
            this->load_queries(this->resident_tile(c, 0), qkv, dout, head, query + c * kRows, barriers.resident());
        typename Base::Stage stage;
        for (int key = begin; key < end; key += kRows, stage.advance()) {
            mbarrier_wait(barriers.empty(stage.index), stage.parity ^ 1);
            mbarrier_expect(barriers.full(stage.index), 2 * Base::Tile::kBytes);
            this->load_keys(this->streamed_tile(stage.index, 0), qkv, head / s.group, key, barriers.full(stage.index));
        }
    }

    __device__ __forceinline__ void consume(bf16* dqkv, float* partial, const RowStats* stats) const {
        const FlashRows<1, HS> rows(s, b, query + kRows * hopper_consumer() + 16 * hopper_warp());
        RowStats of_row[1][2];
        load_row_stats(of_row, stats, rows, head);
        typename Base::Gradient dq = {};
        typename Base::Scores p;
        typename Base::Scores ds;
        typename Base::Packed packed;
        const auto scores = [&]<int GROUPS>(Constant<GROUPS>, int, int i) {
            const int key = begin + i * kRows;
            warpgroup_wait<1 + GROUPS>(p[0]);
#pragma unroll
            for (int n = 0; n < Base::kFragments; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    p[0][n][i] = exp2_fast(fmaf(p[0][n][i], s.scale_log2, -of_row[0][i / 2][0]));
            }
            // Masked here and not in dS: the branch keeps the wait for dP behind the exponentials, as the loop in
            // flash_hopper.cu does.
            if (!rows.see_all(key, key + kRows)) flash_mask(p, rows, key, 0.0f);
            warpgroup_wait<GROUPS>(ds[0]);
#pragma unroll
            for (int n = 0; n < Base::kFragments; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) ds[0][n][i] = p[0][n][i] * (ds[0][n][i] - of_row[0][i / 2][1]);
            }
        };
        this->run_overlapped(
            ceil_div(end - begin, kRows), p, ds, scores, [&] { this->pack_scores(packed, ds); },
            [&](int stage) { this->multiply_columns(dq, packed, stage, 0); }, [&] { warpgroup_wait<0>(dq[0]); });
        flash_scale(dq, s.scale);
        named_barrier_wait(1 + hopper_consumer(), kWarpgroupThreads);  // all four warps have read the resident tiles
        this->store(dqkv, partial, head, query, 0, dq);
    }
};

template <int HS>
__global__ void __launch_bounds__(kHopperThreads, 1)
    flash_attention_hopper_key_gradient_kernel(bf16* dqkv, float* partial, const __grid_constant__ TensorMap qkv,
                                               const __grid_constant__ TensorMap dout, const RowStats* stats,
                                               FlashShape<HS> s) {
    wait_for_earlier_kernels();
    if constexpr (kWarpgroups) {
        using Pass = HopperKeyGradient<HS>;
        SHARED(uint64_t, barriers, Pass::Barriers::kCount);
        DYN_SHARED(bf16, shared);
        const Pass pass(s, shared, barriers);
        pass.barriers.init(Pass::kFills);
        flash_hopper_roles<HS>([&] { pass.produce(qkv, dout, stats); }, [&] { pass.consume(dqkv, partial); });
    }
}

template <int HS>
__global__ void __launch_bounds__(kHopperThreads, 1)
    flash_attention_hopper_query_gradient_kernel(bf16* dqkv, float* partial, const __grid_constant__ TensorMap qkv,
                                                 const __grid_constant__ TensorMap dout, const RowStats* stats,
                                                 FlashShape<HS> s) {
    wait_for_earlier_kernels();
    if constexpr (kWarpgroups) {
        using Pass = HopperQueryGradient<HS>;
        SHARED(uint64_t, barriers, Pass::Barriers::kCount);
        DYN_SHARED(bf16, shared);
        const Pass pass(s, shared, barriers);
        pass.barriers.init(Pass::kFills);
        flash_hopper_roles<HS>([&] { pass.produce(qkv, dout, stats); }, [&] { pass.consume(dqkv, partial, stats); });
    }
}

}  // namespace

int flash_attention_hopper_backward(const FlashBackward& a, const Stream& stream) {
    return with_flash_head_size(a.shape.HS, [&]<int HS>(Constant<HS>) {
        using Pass = HopperBackward<HS>;
        const FlashShape<HS> s(a.shape, a.first_key);
        const int B = a.shape.B;
        const TensorMap qkv = tensor_map(a.qkv, B, s.T, s.packed_row, s.T * s.packed_row, s.packed_row, Pass::kRows);
        const TensorMap dout = tensor_map(a.dout, B, s.T, s.plain_row, s.T * s.plain_row, s.plain_row, Pass::kRows);
        const int tiles = ceil_div(s.T, Pass::kResident);
        launch<flash_attention_hopper_key_gradient_kernel<HS>>({dim3(tiles, s.NKV, B), kHopperThreads, Pass::kBytes},
                                                               stream, a.dqkv, a.partial, qkv, dout, a.stats, s);
        launch<flash_attention_hopper_query_gradient_kernel<HS>>({dim3(tiles, s.NH, B), kHopperThreads, Pass::kBytes},
                                                                 stream, a.dqkv, a.partial, qkv, dout, a.stats, s);
        return 16;  // of a warp
    });
}

}  // namespace teon
