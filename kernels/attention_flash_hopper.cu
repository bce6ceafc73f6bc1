// The forward pass of flash attention with the instructions of sm_90a (runtime/warpgroup.h), as FlashAttention-3
// describes it (Shah et al. 2024, https://arxiv.org/abs/2407.08608). A block has 128 queries of one head and three
// warpgroups. One thread of the producer copies tiles of keys and values into a ring of stages, ahead of the two
// consumers. Each consumer has 64 queries and computes per tile of keys
//
//     S = Q K^T of this tile, O += P V of the previous tile    with wgmma, asynchronously
//     P and the factor of O, from S                            while the other consumer's products run
//
// Named barriers 1 and 2 are the turns of the two consumers; 3 and 4 join the warps of each at the end.
#include "kernels/attention_flash_hopper.h"

#include "kernels/flash_hopper.h"
#include "kernels/flash_softmax.h"

namespace teon {

namespace {

template <int HS>
struct HopperForward {
    static constexpr int kRows = 128;
    static constexpr int kStages = HS == 64 ? 4 : 2;  // kRows: of a tile of queries or keys
    using Tile = HopperTile<kRows, HS>;
    using Barriers = HopperBarriers<kStages, 2>;  // rings of keys and of values
    using Stage = HopperStage<kStages>;
    static constexpr size_t kBytes = static_cast<size_t>((1 + 2 * kStages) * Tile::kBytes);
    static_assert(kRows == 64 * kHopperConsumers);

    const FlashShape<HS>& s;
    bf16* shared;
    Barriers barriers;
    int b, h, query, begin, end;  // the queries see only keys in [begin, end); begin is the first key of a tile

    __device__ __forceinline__ HopperForward(const FlashShape<HS>& s, bf16* shared, uint64_t* barriers)
        : s(s), shared(shared), barriers{{barriers}} {
        b = static_cast<int>(blockIdx.z);
        h = static_cast<int>(blockIdx.y);
        query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;  // the longest blocks start first
        end = query + kRows < s.T ? query + kRows : s.T;
        begin = s.first_key(b, query) / kRows * kRows;
    }
    __device__ __forceinline__ Tile queries() const { return {SharedAddress(shared)}; }
    __device__ __forceinline__ Tile tile(int stage, int ring) const {
        return {SharedAddress(shared) + (1 + 2 * stage + ring) * Tile::kBytes};
    }

    __device__ __forceinline__ void produce(const TensorMap& qkv) const {
        if (threadIdx.x != 0) return;
        mbarrier_expect(barriers.resident(), Tile::kBytes);
        queries().load(qkv, h, query, b, barriers.resident());
        Stage stage;
        for (int key = begin; key < end; key += kRows, stage.advance()) {
            for (int ring = 0; ring < 2; ++ring) {
                mbarrier_wait(barriers.empty(stage.index, ring), stage.parity ^ 1);
                mbarrier_expect(barriers.full(stage.index, ring), Tile::kBytes);
                tile(stage.index, ring)
                    .load(qkv, s.NH + ring * s.NKV + h / s.group, key, b, barriers.full(stage.index, ring));
            }
        }
    }

    __device__ __forceinline__ void consume(bf16* out, float* lse) const {
        const int consumer = hopper_consumer();
        const int first_row = 64 * consumer;
        const FlashRows<1, HS> rows(s, b, query + first_row + 16 * hopper_warp());

        float scores[1][kRows / 8][4];
        float o[1][HS / 8][4] = {};
        float shrink[1][2];
        uint32_t P[kRows / 16][4];
        FlashSoftmax<1> softmax;
        const auto multiply_keys = [&](int stage) {
#pragma unroll
            for (int k = 0; k < HS / 16; ++k)
                warpgroup_multiply(scores[0], queries().rows(k, first_row), tile(stage, 0).rows(k), k > 0);
            warpgroup_commit();
        };
        const auto multiply_values = [&](int stage) {
#pragma unroll
            for (int k = 0; k < kRows / 16; ++k)
                warpgroup_multiply_columns(o[0], P[k], tile(stage, 1).columns(k), true);
            warpgroup_commit();
        };
        const auto pack_scores = [&] {
#pragma unroll
            for (int k = 0; k < kRows / 16; ++k) tile_pack_a(P[k], scores[0], k);
        };
        const auto wait_for_turn = [&] { named_barrier_wait(1 + consumer, kHopperConsumers * kWarpgroupThreads); };
        // After the last tile of consumer 1 there is no turn left.
        const auto end_turn = [&](int key) {
            if (consumer == 0 || key + kRows < end)
                named_barrier_arrive(2 - consumer, kHopperConsumers * kWarpgroupThreads);
        };

        Stage now;
        Stage before;
        const auto wait_for_keys = [&] { mbarrier_wait(barriers.full(now.index, 0), now.parity); };
        const auto advance_to_keys = [&](int key) {
            now.advance();
            if (key < end) wait_for_keys();
        };
        if (consumer == 1) named_barrier_arrive(1, kHopperConsumers * kWarpgroupThreads);  // consumer 0 has turn one
        mbarrier_wait(barriers.resident(), 0);
        wait_for_keys();
        wait_for_turn();
        warpgroup_begin();
        multiply_keys(now.index);
        end_turn(begin);
        warpgroup_wait<0>(scores[0]);
        barriers.arrive_empty(now.index, 0);
        softmax.step(scores, shrink, rows, begin, s.scale_log2);
        pack_scores();
        advance_to_keys(begin + kRows);
        for (int key = begin + kRows; key < end; key += kRows) {
            mbarrier_wait(barriers.full(before.index, 1), before.parity);
            wait_for_turn();
            warpgroup_begin();
            multiply_keys(now.index);
            multiply_values(before.index);
            end_turn(key);
            warpgroup_wait<1>(scores[0]);
            barriers.arrive_empty(now.index, 0);
            softmax.step(scores, shrink, rows, key, s.scale_log2);
            // The loop of this wait keeps the next one, for O, behind the exponentials: ptxas moves waits within
            // straight code only, but there to the front (bench/instruction_counts.py checks the order).
            advance_to_keys(key + kRows);
            warpgroup_wait<0>(o[0]);
            barriers.arrive_empty(before.index, 1);
            before.advance();
            flash_scale_rows(o, shrink);
            pack_scores();
        }
        mbarrier_wait(barriers.full(before.index, 1), before.parity);
        warpgroup_begin();
        multiply_values(before.index);
        warpgroup_wait<0>(o[0]);

        softmax.finish(o, lse, rows, h);
        named_barrier_wait(3 + consumer, kWarpgroupThreads);  // all four warps have read their queries
        hopper_store<kRows, HS>(s.plain(out, b, rows.first, h), s.plain_row, s.T - rows.first, shared,
                                first_row + 16 * hopper_warp(), o);
    }
};

template <int HS>
__global__ void __launch_bounds__(kHopperThreads, 1)
    flash_attention_hopper_kernel(bf16* out, float* lse, const __grid_constant__ TensorMap qkv, FlashShape<HS> s) {
    wait_for_earlier_kernels();
    if constexpr (kWarpgroups) {
        SHARED(uint64_t, barriers, HopperForward<HS>::Barriers::kCount);
        DYN_SHARED(bf16, shared);
        const HopperForward<HS> pass(s, shared, barriers);
        pass.barriers.init(1);
        flash_hopper_roles<HS>([&] { pass.produce(qkv); }, [&] { pass.consume(out, lse); });
    }
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
        const FlashShape<HS> s(a.shape, a.doc_start);
        const int B = a.shape.B;
        launch<flash_attention_hopper_kernel<HS>>(
            {dim3(ceil_div(s.T, Pass::kRows), s.NH, B), kHopperThreads, Pass::kBytes}, stream, a.out, a.lse,
            tensor_map(a.qkv, B, s.T, s.packed_row, s.T * s.packed_row, s.packed_row, Pass::kRows), s);
    });
}

}  // namespace teon
