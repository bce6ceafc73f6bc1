// Launches kernels on a CPU, for runtime/simt.h.
#pragma once

#include <cstddef>

#include "cpu/device.h"
#include "cpu/simt.h"

namespace teon::cpu {

// Runs body(arguments) in every thread of grid x block, with smem bytes of dynamic shared memory. Copies the `bytes` of
// the arguments if the kernel does not run at once. `name` must never be freed.
cudaError_t launch(const char* name, dim3 grid, dim3 block, size_t smem, cudaStream_t stream, void (*body)(const void*),
                   const void* arguments, size_t bytes);

}  // namespace teon::cpu
