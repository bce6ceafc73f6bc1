// The GPUs that the model can be: rows of base/gpus.h.
#pragma once

#include <cstddef>

#include "base/gpus.h"

namespace teon::gpusim {

// The bytes of shared memory that a kernel may use without opt-in.
inline constexpr size_t kSharedUnasked = 48 * 1024;

// Returns the GPU that the environment variable CUDA_DEVICE names, or H200 if it is not set. Throws UsageError if the
// name is not known.
const GpuSheet& find_device_model();

}  // namespace teon::gpusim
