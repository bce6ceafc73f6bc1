// Tensors of which kernels copy tiles by one instruction (runtime/warpgroup.h): where they lie, how large a tile is.
#pragma once

#include <cstdint>

#include "base/dtype.h"

#if !defined(__CUDACC__)
#define __grid_constant__  // of a kernel's parameter: its address may be taken
#endif

namespace teon {

// What the driver makes of it. A kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

// `batches` matrices of rows x columns elements at x, which is 16-byte aligned; strides in elements, multiples of 8.
// Tiles are tile_rows (at most 256) x 64 elements, and lie in shared memory as runtime/warpgroup.h says; elements that
// a tile has beyond the matrix are 0. Throws Error where the driver refuses it, and on a CPU.
TensorMap tensor_map(const bf16* x, int64_t batches, int64_t rows, int64_t columns, int64_t batch_stride,
                     int64_t row_stride, int tile_rows);
inline constexpr int kTensorTileColumns = 64;

}  // namespace teon
