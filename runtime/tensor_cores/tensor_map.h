// Tensor maps: descriptions of tensors (address, extents, size of a tile) whose tiles kernels copy with one instruction
// (runtime/tensor_cores/warpgroup.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"

#if !defined(__CUDACC__)
#define __grid_constant__  // allows a kernel to take the address of its parameter
#endif

namespace teon {

// The encoding by the driver. A kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

// Returns the map of `batches` matrices of rows x columns elements of 16 bits at x, which is 16-byte aligned. Strides
// are in elements and multiples of 8; the batch stride is a multiple of the row stride. Tiles are tile_rows (at most
// 256) x 64 elements; runtime/tensor_cores/warpgroup.h describes their layout in shared memory. Elements of a tile
// outside of the matrix are 0. Throws Error if the driver refuses the map, and on a CPU.
TensorMap tensor_map(const void* x, int64_t batches, int64_t rows, int64_t columns, int64_t batch_stride,
                     int64_t row_stride, int tile_rows);
inline constexpr int kTensorTileColumns = 64;

}  // namespace teon
