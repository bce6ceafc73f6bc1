// A tensor map ("Tensor-map"). NVIDIA does not document its 128 bytes; this is the model's own encoding.
#pragma once

#include <cstdint>

namespace teon::gpusim {

struct TensorMap {
    static constexpr uint32_t kMagic = 0x74656f6e;
    static constexpr int kMaxRank = 5;
    // CUtensorMapDataType.
    enum Type : int { kU8, kU16, kU32, kS32, kU64, kS64, kF16, kF32, kF64, kBf16, kF32Ftz, kTf32, kTf32Ftz };
    static constexpr uint8_t kBytesOf[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    uint32_t magic = kMagic;
    uint8_t rank = 0, element_bytes = 0;
    uint8_t swizzle_bytes = 0;  // 0: none; else 32, 64 or 128
    uint8_t type = 0;
    uint64_t unused = 0;  // programs clear bit 21 here, to work around a fault of NVIDIA's driver (CUTLASS)
    uint64_t address = 0;
    uint64_t strides[kMaxRank] = {};  // in bytes; strides[0] is the size of an element
    uint32_t extents[kMaxRank] = {};  // elements
    uint32_t box[kMaxRank] = {};      // elements that one copy transfers
    uint32_t reserved[6] = {};
};
static_assert(sizeof(TensorMap) == 128);

// The address of the 16 bytes at `address` after a tile is swizzled in rows of `bytes` (32, 64 or 128): "Swizzling
// Modes".
inline uint32_t swizzled(uint32_t address, uint32_t bytes) { return address ^ (address >> 3 & (bytes - 1) & ~15u); }

}  // namespace teon::gpusim
