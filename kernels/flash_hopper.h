// Shared by the passes of flash attention on sm_90a: the roles of warpgroups, and the tiles and barriers in shared
// memory. Private to kernels/attention_flash*_hopper.cu; attention_flash_hopper.cu describes the method.
#pragma once

#include "kernels/flash_shape.h"
#include "runtime/warpgroup.h"

namespace teon {

// Warpgroup 0 copies tiles (the producer), the others compute (the consumers).
inline constexpr int kHopperConsumers = 2;
inline constexpr int kHopperConsumerWarps = 4 * kHopperConsumers;
inline constexpr int kHopperThreads = (1 + kHopperConsumers) * kWarpgroupThreads;

// A tile of ROWS rows of one head in shared memory: its first 64 columns, then the others.
template <int ROWS, int HS>
struct HopperTile {
    static constexpr int kPart = ROWS * kTensorTileColumns * static_cast<int>(sizeof(bf16));
    static constexpr int kBytes = HS / 64 * kPart;
    SharedAddress begin;

    // Called by one thread. Copies the columns of head `head` in the rows of sequence b from `row` on. The map's tiles
    // have ROWS rows.
    __device__ __forceinline__ void load(const TensorMap& map, int head, int row, int b, uint64_t* barrier) const {
        for (int part = 0; part < HS / 64; ++part)
            tensor_copy(begin + part * kPart, map, head * HS + part * kTensorTileColumns, row, b, barrier);
    }
    // Operands of products: columns [16 k, 16 k + 16) of the rows from `row` (a multiple of 8) on; and rows
    // [16 k, 16 k + 16) of all columns.
    __device__ __forceinline__ TileOperand rows(int k, int row = 0) const {
        return TileOperand(begin) + (k / 4 * kPart + k % 4 * 32 + row * 2 * kTensorTileColumns);
    }
    __device__ __forceinline__ TileOperand columns(int k) const {
        return TileOperand(begin, kPart) + k * 16 * 2 * kTensorTileColumns;
    }
};

// Writes the 16 rows x HS of `x` of a consumer warp to global memory: the first `rows` of them, `stride` elements
// apart. They pass through rows [row, row + 16) of a tile of ROWS rows, which must no longer be in use.
template <int ROWS, int HS>
__device__ __forceinline__ void hopper_store(bf16* global, int64_t stride, int rows, bf16* tile, int row,
                                             const float (&x)[1][HS / 8][4]) {
    using Staged = TensorTile<bf16, 16, kTensorTileColumns, kWarpgroupThreads>;
#pragma unroll
    for (int part = 0; part < HS / 64; ++part) {
        const Staged staged{tile + (part * ROWS + row) * kTensorTileColumns};
        staged.store(global + part * kTensorTileColumns, stride, rows,
                     reinterpret_cast<const float(&)[1][8][4]>(x[0][8 * part]));
    }
}

// The position of a warp in a ring of stages, and the parity of its round.
template <int STAGES>
struct HopperStage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++index == STAGES) {
            index = 0;
            parity ^= 1;
        }
    }
};

// The mbarriers: one for the resident tiles (`resident`); and for each stage of each of RINGS rings one that completes
// when the stage's data have arrived (`full`) and one that completes when all warps of the consumers have read it
// (`empty`).
template <int STAGES, int RINGS>
struct HopperBarriers {
    static constexpr int kCount = 1 + 2 * RINGS * STAGES;
    uint64_t* memory;
    __device__ __forceinline__ uint64_t* resident() const { return memory; }
    __device__ __forceinline__ uint64_t* full(int stage, int ring = 0) const {
        return memory + 1 + ring * STAGES + stage;
    }
    __device__ __forceinline__ uint64_t* empty(int stage, int ring = 0) const { return full(stage, RINGS + ring); }
    __device__ __forceinline__ void arrive_empty(int stage, int ring = 0) const {
        __syncwarp();
        if (lane_of_thread() == 0) mbarrier_arrive(empty(stage, ring));
    }

    // Called by all threads. fills: the arrivals at each `full`.
    __device__ __forceinline__ void init(int fills) const {
        if (threadIdx.x == 0) {
            mbarrier_init(resident(), 1);
            for (int ring = 0; ring < RINGS; ++ring) {
                for (int stage = 0; stage < STAGES; ++stage) {
                    mbarrier_init(full(stage, ring), fills);
                    mbarrier_init(empty(stage, ring), kHopperConsumerWarps);
                }
            }
            mbarrier_init_done();
        }
        __syncthreads();
    }
};

// The number of a consumer, and of a warp in it.
__device__ __forceinline__ int hopper_consumer() { return warp_of_thread() / 4 - 1; }
__device__ __forceinline__ int hopper_warp() { return warp_of_thread() % 4; }

// The warps of the first warpgroup call produce(), the others consume(). Each thread begins with 168 registers; the
// producer gives those that it does not need to the consumers.
template <int HS, typename Produce, typename Consume>
__device__ __forceinline__ void hopper_roles(Produce produce, Consume consume) {
    constexpr int kProducer = HS == 64 ? 40 : 24;
    constexpr int kConsumer = 168 + (168 - kProducer) / kHopperConsumers;
    if (warp_of_thread() < 4) {
        give_registers<kProducer>();
        produce();
    } else {
        take_registers<kConsumer>();
        consume();
    }
}

}  // namespace teon
