// Launches kernels on a CPU, for runtime/simt.h.
#pragma once

#include <cstddef>

#include "cpu/simt.h"

namespace teon::cpu {

// Bytes of a block's shared memory that are reserved for static arrays if a kernel also uses dynamic shared memory. It
// is the alignment of the dynamic array, to which the static arrays are padded.
inline constexpr size_t kStaticSharedBytes = 1024;

// Runs body(arguments) in every thread of grid x block, with smem bytes of dynamic shared memory. Copies the `bytes` of
// the arguments if the kernel does not run at once. `name` must never be freed.
cudaError_t launch(const char* name, dim3 grid, dim3 block, size_t smem, cudaStream_t stream, void (*body)(const void*),
                   const void* arguments, size_t bytes);

}  // namespace teon::cpu
