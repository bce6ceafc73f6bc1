// The forward pass of attention_flash.cu with the instructions of sm_90a (runtime/warpgroup.h), as FlashAttention-3
// describes it (Shah et al. 2024, https://arxiv.org/abs/2407.08608). A block has 128 queries of one head and three
// warpgroups. One brings tiles of keys and values, one thread of it, ahead of the two others by as many stages as
// shared memory has; it gives them its registers. Those have 64 queries each, and per tile of keys
//
//     S = Q K^T of this tile, O += P V of the one before    products, which run while
//     P, and by what O shrinks, of S                         the other warpgroup computes these: they take turns
//
// Each stage has an mbarrier that its bytes fill (`full`) and one on which the eight warps that have read it arrive
// (`empty`). Barriers 1 and 2 are the turns of the two warpgroups, 3 and 4 join the warps of each at the end.
#include "kernels/attention_flash_hopper.h"

#include "kernels/flash_softmax.h"
#include "runtime/warpgroup.h"

namespace teon {

namespace {

constexpr int kConsumers = 2;
constexpr int kThreads = (1 + kConsumers) * kWarpgroupThreads;
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;  // of the 168 that each thread begins with

template <int HS>
struct HopperTiles {
    static constexpr int kQueries = 64 * kConsumers, kKeys = 128, kStages = HS == 64 ? 4 : 2;
    static_assert(kQueries == kKeys);  // one tensor map serves all

    // A tile of 128 rows: its first 64 columns, then the others.
    static constexpr int kPart = kKeys * kTensorTileColumns * static_cast<int>(sizeof(bf16)), kTile = HS / 64 * kPart;
    static constexpr size_t kBytes = static_cast<size_t>((1 + 2 * kStages) * kTile);
    // Of the 16 columns k of a tile.
    static __device__ __forceinline__ int column_offset(int k) { return k / 4 * kPart + k % 4 * 32; }
};

// Where a warp is in the ring of stages.
template <int STAGES>
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

template <int HS>
struct HopperBarriers {
    static constexpr int kStages = HopperTiles<HS>::kStages, kCount = 1 + 4 * kStages;
    uint64_t* memory;
    __device__ __forceinline__ uint64_t* queries() const { return memory; }
    // Of keys (0) or values (1).
    __device__ __forceinline__ uint64_t* full(int what, int stage) const { return memory + 1 + what * kStages + stage; }
    __device__ __forceinline__ uint64_t* empty(int what, int stage) const { return full(2 + what, stage); }

    __device__ __forceinline__ void init() const {
        mbarrier_init(queries(), 1);
        for (int what = 0; what < 2; what++) {
            for (int stage = 0; stage < kStages; stage++) {
                mbarrier_init(full(what, stage), 1);
                mbarrier_init(empty(what, stage), 4 * kConsumers);
            }
        }
        mbarrier_init_done();
    }
};

// Keys [begin, end) that any query of the block sees, in whole tiles.
struct KeyRange {
    int b, h, query, begin, end;
};

template <int HS>
__device__ __forceinline__ void produce(SharedAddress shared, const HopperBarriers<HS>& barriers, const TensorMap& qkv,
                                        const FlashShape<HS>& s, const KeyRange& range) {
    using Tiles = HopperTiles<HS>;
    const auto bring = [&](SharedAddress to, int head, int row, uint64_t* barrier) {
        mbarrier_expect(barrier, Tiles::kTile);
        for (int part = 0; part < HS / 64; part++)
            tensor_copy(to + part * Tiles::kPart, qkv, head * HS + part * kTensorTileColumns, row, range.b, barrier);
    };
    bring(shared, range.h, range.query, barriers.queries());
    Stage<Tiles::kStages> stage;
    for (int key = range.begin; key < range.end; key += Tiles::kKeys, stage.advance()) {
        for (int what = 0; what < 2; what++) {
            mbarrier_wait(barriers.empty(what, stage.index), stage.parity ^ 1);
            bring(shared + (1 + 2 * stage.index + what) * Tiles::kTile, s.NH + what * s.NKV + range.h / s.group, key,
                  barriers.full(what, stage.index));
        }
    }
}

template <int HS>
__device__ __forceinline__ void consume(bf16* out, float* lse, bf16* shared, const HopperBarriers<HS>& barriers,
                                        const FlashShape<HS>& s, const KeyRange& range) {
    using Tiles = HopperTiles<HS>;
    constexpr int N = Tiles::kKeys / 8, C = HS / 8, kRows = 16 * 2 * kTensorTileColumns;  // bytes of 16 rows
    const int warp = warp_of_thread() % 4, consumer = warp_of_thread() / 4 - 1;
    const FlashRows<1, HS> rows(s, range.b, range.query + 64 * consumer + 16 * warp);
    const SharedAddress base(shared), Q = base + consumer * 64 * 128;
    const auto tile = [&](int what, int stage) { return base + (1 + 2 * stage + what) * Tiles::kTile; };
    const auto leave = [&](int what, int stage) {
        if (lane_of_thread() == 0) mbarrier_arrive(barriers.empty(what, stage));
    };

    float scores[1][N][4], o[1][C][4] = {}, shrink[1][2];
    uint32_t P[N / 2][4];
    FlashSoftmax<1> softmax;
    const auto multiply_keys = [&](int stage) {
#pragma unroll
        for (int k = 0; k < HS / 16; k++)
            warpgroup_multiply(scores[0], TileOperand(Q + Tiles::column_offset(k)),
                               TileOperand(tile(0, stage) + Tiles::column_offset(k)), k > 0);
        warpgroup_commit();
    };
    const auto multiply_values = [&](int stage) {
#pragma unroll
        for (int k = 0; k < N / 2; k++)
            warpgroup_multiply_columns(o[0], P[k], TileOperand(tile(1, stage) + k * kRows, Tiles::kPart), true);
        warpgroup_commit();
    };
    const auto pack_scores = [&] {
#pragma unroll
        for (int k = 0; k < N / 2; k++) tile_pack_a(P[k], scores[0], k);
    };
    const auto await_turn = [&] { named_barrier_wait(1 + consumer, kConsumers * kWarpgroupThreads); };
    const auto end_turn = [&] { named_barrier_arrive(2 - consumer, kConsumers * kWarpgroupThreads); };

    Stage<Tiles::kStages> now, before;
    if (consumer == 1) end_turn();  // the first turn is the other's
    mbarrier_wait(barriers.queries(), 0);
    mbarrier_wait(barriers.full(0, now.index), now.parity);
    await_turn();
    warpgroup_begin();
    multiply_keys(now.index);
    if (consumer == 0 || range.begin + Tiles::kKeys < range.end) end_turn();
    warpgroup_wait<0>(scores[0]);
    leave(0, now.index);
    softmax.step(scores, shrink, rows, range.begin, s.scale_log2);
    pack_scores();
    for (int key = range.begin + Tiles::kKeys; key < range.end; key += Tiles::kKeys) {
        now.advance();
        mbarrier_wait(barriers.full(0, now.index), now.parity);
        mbarrier_wait(barriers.full(1, before.index), before.parity);
        await_turn();
        warpgroup_begin();
        multiply_keys(now.index);
        multiply_values(before.index);
        if (consumer == 0 || key + Tiles::kKeys < range.end) end_turn();
        warpgroup_wait<1>(scores[0]);
        leave(0, now.index);
        softmax.step(scores, shrink, rows, key, s.scale_log2);
        warpgroup_wait<0>(o[0]);
        leave(1, before.index);
        before.advance();
        flash_scale_rows(o, shrink);
        pack_scores();
    }
    mbarrier_wait(barriers.full(1, before.index), before.parity);
    warpgroup_begin();
    multiply_values(before.index);
    warpgroup_wait<0>(o[0]);

    softmax.finish(o, lse, rows, range.h);
    named_barrier_wait(3 + consumer, kWarpgroupThreads);  // all four warps have read their queries
    using Staged = TensorTile<bf16, 16, kTensorTileColumns, kWarpgroupThreads>;
    const int row = 64 * consumer + 16 * warp;
#pragma unroll
    for (int part = 0; part < HS / 64; part++) {
        const Staged staged{shared + (part * Tiles::kKeys + row) * kTensorTileColumns};
        staged.store(s.plain(out, range.b, rows.first, range.h) + part * kTensorTileColumns, s.plain_row,
                     s.T - rows.first, reinterpret_cast<const float(&)[1][8][4]>(o[0][8 * part]));
    }
}

template <int HS>
__global__ void __launch_bounds__(kThreads, 1)
    flash_attention_hopper_kernel(bf16* out, float* lse, const __grid_constant__ TensorMap qkv, FlashShape<HS> s) {
    wait_for_earlier_kernels();
    if constexpr (kWarpgroups) {
        using Tiles = HopperTiles<HS>;
        SHARED(uint64_t, memory, HopperBarriers<HS>::kCount);
        DYN_SHARED(bf16, shared);
        const HopperBarriers<HS> barriers{memory};
        KeyRange range;
        range.b = static_cast<int>(blockIdx.z), range.h = static_cast<int>(blockIdx.y);
        range.query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kQueries;  // those that see most come first
        range.end = range.query + Tiles::kQueries < s.T ? range.query + Tiles::kQueries : s.T;
        range.begin = s.first_key(range.b, range.query) / Tiles::kKeys * Tiles::kKeys;
        if (threadIdx.x == 0) barriers.init();
        __syncthreads();
        if (warp_of_thread() < 4) {
            give_registers<kProducerRegisters>();
            if (threadIdx.x == 0) produce(SharedAddress(shared), barriers, qkv, s, range);
        } else {
            take_registers<kConsumerRegisters>();
            consume(out, lse, shared, barriers, s, range);
        }
    }
}

}  // namespace

template <int HS>
bool flash_attention_hopper_runs() {
    static const bool runs = has_warpgroup_code<flash_attention_hopper_kernel<HS>>();
    return runs;
}

template <int HS>
void flash_attention_hopper_forward(bf16* out, float* lse, const bf16* qkv, const FlashShape<HS>& s, int B,
                                    const Stream& stream) {
    using Tiles = HopperTiles<HS>;
    launch<flash_attention_hopper_kernel<HS>>(
        {dim3(flash_tiles(s.T, Tiles::kQueries), s.NH, B), kThreads, Tiles::kBytes}, stream, out, lse,
        tensor_map(qkv, B, s.T, s.packed_row, s.T * s.packed_row, s.packed_row, Tiles::kKeys), s);
}

#define FOR_HEAD_SIZE(HS)                                                                                    \
    template bool flash_attention_hopper_runs<HS>();                                                         \
    template void flash_attention_hopper_forward<HS>(bf16*, float*, const bf16*, const FlashShape<HS>&, int, \
                                                     const Stream&);
FOR_HEAD_SIZE(64)
FOR_HEAD_SIZE(128)

}  // namespace teon
