// Shared by the passes of flash attention on sm_90a: tiles and barriers in shared memory. Private to
// kernels/attention/flash*_hopper.cu; flash_hopper.cu describes the method.
#pragma once

#include "kernels/attention/flash_shape.h"
#include "runtime/tensor_cores/warpgroup_ring.h"

namespace teon {

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

// The mbarriers of a pass: one for the resident tiles, and those of its rings.
template <int STAGES, int RINGS>
struct HopperBarriers : HopperRings<STAGES, RINGS> {
    using Rings = HopperRings<STAGES, RINGS>;
    static constexpr int kCount = Rings::kCount + 1;
    __device__ __forceinline__ uint64_t* resident() const { return this->memory + Rings::kCount; }

    // Called by all threads. fills: the arrivals at each `full`.
    __device__ __forceinline__ void init(int fills) const {
        if (threadIdx.x == 0) mbarrier_init(resident(), 1);
        Rings::init(fills);
    }
};

// Calls produce() and consume() (runtime/tensor_cores/warpgroup_ring.h) with the registers that passes of this head
// size need.
template <int HS, typename Produce, typename Consume>
__device__ __forceinline__ void flash_hopper_roles(Produce produce, Consume consume) {
    hopper_roles<HS == 64 ? 40 : 24>(produce, consume);
}

}  // namespace teon
