// The forward pass of flash attention with the instructions of sm_90a (runtime/tensor_cores/warpgroup.h), as
// FlashAttention-3 describes it (Shah et al. 2024, https://arxiv.org/abs/2407.08608). A block walks over several tiles
// of 128 queries of one head and has three warpgroups. One thread of the producer copies tiles of queries, keys and
// values into rings of stages, ahead of the two consumers, also across the end of a tile of queries. Each consumer has
// 64 of its queries and computes per tile of keys
//
//     S = Q K^T of this tile, O += P V of the previous tile    with wgmma, asynchronously
//     P and the factor of O, from S                            while the other consumer's products run
//
// Named barriers 1 and 2 are the turns of the two consumers. At the end of its queries, a consumer writes its part of O
// while the other still multiplies, and begins with the next queries, which have been copied before.
#include "kernels/attention/flash_hopper.h"

#include "kernels/attention/flash_hopper_tiles.h"
#include "kernels/attention/flash_softmax.h"

namespace teon {

namespace {

template <int HS>
struct HopperForward {
    static constexpr int kRows = 128;  // of a tile of queries or keys
    static constexpr int kStages = HS == 64 ? 4 : 2;
    static constexpr int kQueryStages = HS == 64 ? 2 : 1;
    using Tile = HopperTile<kRows, HS>;
    using Rings = HopperRings<kStages, 2>;  // of keys and of values
    using QueryRing = HopperRings<kQueryStages>;
    using Stage = HopperStage<kStages>;
    using QueryStage = HopperStage<kQueryStages>;
    static constexpr int kTiles = kQueryStages + 2 * kStages;  // in rings; behind them is one of O
    static constexpr size_t kBytes = static_cast<size_t>((kTiles + 1) * Tile::kBytes);
    static_assert(kRows == 64 * kHopperConsumers);

    const FlashShape<HS>& s;
    bf16* shared;
    Rings rings;
    QueryRing query_ring;
    int b, h;

    __device__ __forceinline__ HopperForward(const FlashShape<HS>& s, bf16* shared, uint64_t* barriers)
        : s(s), shared(shared), rings{barriers}, query_ring{barriers + Rings::kCount} {
        b = static_cast<int>(blockIdx.z);
        h = static_cast<int>(blockIdx.y);
        if (threadIdx.x == 0) query_ring.make(1);
        rings.init(1);
    }
    __device__ __forceinline__ Tile queries(int stage) const { return {SharedAddress(shared) + stage * Tile::kBytes}; }
    __device__ __forceinline__ Tile tile(int stage, int ring) const {
        return {SharedAddress(shared) + (kQueryStages + 2 * stage + ring) * Tile::kBytes};
    }
    __device__ __forceinline__ bf16* output() const { return shared + kTiles * kRows * HS; }

    // Calls f(query, begin, end) for each tile of queries of this block: rows [query, query + kRows), which see only
    // keys in [begin, end); begin is the first key of a tile. The blocks of a head share its tiles from the last and
    // longest to the first, forwards and backwards by turns, so that each block has about the same number of keys.
    template <typename F>
    __device__ __forceinline__ void for_query_tiles(F f) const {
        const int blocks = static_cast<int>(gridDim.x);
        const int block = static_cast<int>(blockIdx.x);
        const int last = (s.T - 1) / kRows;
        for (int round = 0;; ++round) {
            const int tile = last - round * blocks - (round % 2 == 0 ? block : blocks - 1 - block);
            if (tile < 0) return;
            const int query = tile * kRows;
            const int end = query + kRows < s.T ? query + kRows : s.T;
            f(query, s.first_key_of_tile(b, query) / kRows * kRows, end);
        }
    }

    __device__ __forceinline__ void produce(const TensorMap& qkv) const {
        if (threadIdx.x != 0) return;
        const auto load = [&](const Tile& to, int head, int row, uint64_t* full, uint64_t* empty, int parity) {
            mbarrier_wait(empty, parity ^ 1);
            mbarrier_expect(full, Tile::kBytes);
            to.load(qkv, head, row, b, full);
        };
        Stage stage;
        QueryStage q;
        for_query_tiles([&](int query, int begin, int end) {
            load(queries(q.index), h, query, query_ring.full(q.index), query_ring.empty(q.index), q.parity);
            q.advance();
            for (int key = begin; key < end; key += kRows, stage.advance()) {
                for (int ring = 0; ring < 2; ++ring) {
                    load(tile(stage.index, ring), s.NH + ring * s.NKV + h / s.group, key, rings.full(stage.index, ring),
                         rings.empty(stage.index, ring), stage.parity);
                }
            }
        });
    }
};

// A thread of a consumer.
template <int HS>
struct HopperForwardConsumer {
    using Pass = HopperForward<HS>;
    static constexpr int kRows = Pass::kRows;

    const Pass& pass;
    int consumer = hopper_consumer();
    int first_row = 64 * consumer;
    typename Pass::QueryStage queries;
    typename Pass::Stage keys, values;  // of the next product
    float scores[1][kRows / 8][4];
    float o[1][HS / 8][4];
    float shrink[1][2];
    uint32_t P[kRows / 16][4];

    __device__ __forceinline__ explicit HopperForwardConsumer(const Pass& pass) : pass(pass) {}

    __device__ __forceinline__ void multiply_keys() {
#pragma unroll
        for (int k = 0; k < HS / 16; ++k)
            warpgroup_multiply(scores[0], pass.queries(queries.index).rows(k, first_row),
                               pass.tile(keys.index, 0).rows(k), k > 0);
        warpgroup_commit();
    }
    __device__ __forceinline__ void multiply_values() {
#pragma unroll
        for (int k = 0; k < kRows / 16; ++k)
            warpgroup_multiply_columns(o[0], P[k], pass.tile(values.index, 1).columns(k), true);
        warpgroup_commit();
    }
    __device__ __forceinline__ void pack_scores() {
#pragma unroll
        for (int k = 0; k < kRows / 16; ++k) tile_pack_a(P[k], scores[0], k);
    }
    __device__ __forceinline__ void wait_for_turn() const {
        named_barrier_wait(1 + consumer, kHopperConsumers * kWarpgroupThreads);
    }
    __device__ __forceinline__ void end_turn() const {
        named_barrier_arrive(2 - consumer, kHopperConsumers * kWarpgroupThreads);
    }
    __device__ __forceinline__ void wait_for_keys() const {
        mbarrier_wait(pass.rings.full(keys.index, 0), keys.parity);
    }
    __device__ __forceinline__ void wait_for_values() const {
        mbarrier_wait(pass.rings.full(values.index, 1), values.parity);
    }
    // The keys have been multiplied. Waits for the next ones, of the same queries.
    __device__ __forceinline__ void advance_keys(bool wait) {
        keys.advance();
        if (wait) wait_for_keys();
    }
    __device__ __forceinline__ void end_values() {
        pass.rings.arrive_empty(values.index, 1);
        values.advance();
    }

    // O and the softmax of the rows, which see only keys in [begin, end).
    __device__ __forceinline__ void attend(FlashSoftmax<1>& softmax, const FlashRows<1, HS>& rows, int begin, int end) {
#pragma unroll
        for (auto& column : o[0]) column[0] = column[1] = column[2] = column[3] = 0.0f;
        const float scale = pass.s.scale_log2;
        mbarrier_wait(pass.query_ring.full(queries.index), queries.parity);
        wait_for_keys();
        wait_for_turn();
        warpgroup_begin();
        multiply_keys();
        end_turn();
        warpgroup_wait<0>(scores[0]);
        pass.rings.arrive_empty(keys.index, 0);
        softmax.step(scores, shrink, rows, begin, scale);
        pack_scores();
        advance_keys(begin + kRows < end);
        for (int key = begin + kRows; key < end; key += kRows) {
            wait_for_values();
            wait_for_turn();
            warpgroup_begin();
            multiply_keys();
            multiply_values();
            end_turn();
            warpgroup_wait<1>(scores[0]);
            pass.rings.arrive_empty(keys.index, 0);
            softmax.step(scores, shrink, rows, key, scale);
            // The loop of this wait keeps the next one, for O, behind the exponentials: ptxas moves waits within
            // straight code only, but there to the front (bench/instruction_counts.py checks the order).
            advance_keys(key + kRows < end);
            warpgroup_wait<0>(o[0]);
            end_values();
            flash_scale_rows(o, shrink);
            pack_scores();
        }
        pass.query_ring.arrive_empty(queries.index);
        queries.advance();
        wait_for_values();
        warpgroup_begin();
        multiply_values();
        warpgroup_wait<0>(o[0]);
        end_values();
    }

    __device__ __forceinline__ void run(bf16* out, float* lse) {
        if (consumer == 1) end_turn();  // consumer 0 has turn one
        pass.for_query_tiles([&](int query, int begin, int end) {
            const FlashRows<1, HS> rows(pass.s, pass.b, query + first_row + 16 * hopper_warp());
            FlashSoftmax<1> softmax;
            attend(softmax, rows, begin, end);
            softmax.finish(o, lse, rows, pass.h);
            hopper_store<kRows, HS>(pass.s.plain(out, pass.b, rows.first, pass.h), pass.s.plain_row,
                                    pass.s.T - rows.first, pass.output(), first_row + 16 * hopper_warp(), o);
        });
        if (consumer == 0) wait_for_turn();  // so that no arrival is left at its barrier
    }
};

template <int HS>
__global__ void __launch_bounds__(kHopperThreads, 1)
    flash_attention_hopper_kernel(bf16* out, float* lse, const __grid_constant__ TensorMap qkv, FlashShape<HS> s) {
    wait_for_earlier_kernels();
    if constexpr (kWarpgroups) {
        using Pass = HopperForward<HS>;
        SHARED(uint64_t, barriers, Pass::Rings::kCount + Pass::QueryRing::kCount);
        DYN_SHARED(bf16, shared);
        const Pass pass(s, shared, barriers);
        flash_hopper_roles<HS>([&] { pass.produce(qkv); }, [&] { HopperForwardConsumer<HS>(pass).run(out, lse); });
    }
}

// The number of blocks that share the tiles of a head. Each walks over up to four, because a multiprocessor holds one
// block and nothing hides its start and end; over fewer if there are few heads, so that all multiprocessors are busy to
// the end (docs/fp8.md).
int blocks_of_head(int tiles, int64_t heads) {
    static const int multiprocessors = device_info().multiprocessors;
    int walk = 4;
    while (walk > 1 && heads * ceil_div(tiles, walk) < int64_t{2} * multiprocessors) walk /= 2;
    return ceil_div(tiles, walk);
}

}  // namespace

bool flash_attention_hopper_has_code(int head_size) {
    return with_flash_head_size(head_size, []<int HS>(Constant<HS>) {
        static const bool has_code = has_warpgroup_code<flash_attention_hopper_kernel<HS>>();
        return has_code;
    });
}

void flash_attention_hopper_forward(const FlashForward& a, const Stream& stream) {
    with_flash_head_size(a.shape.HS, [&]<int HS>(Constant<HS>) {
        using Pass = HopperForward<HS>;
        const FlashShape<HS> s(a.shape, a.first_key);
        const int B = a.shape.B;
        const int blocks = blocks_of_head(ceil_div(s.T, Pass::kRows), int64_t{B} * s.NH);
        launch<flash_attention_hopper_kernel<HS>>(
            {dim3(blocks, s.NH, B), kHopperThreads, Pass::kBytes}, stream, a.out, a.lse,
            tensor_map(a.qkv, B, s.T, s.packed_row, s.T * s.packed_row, s.packed_row, Pass::kRows), s);
    });
}

}  // namespace teon
