// The GPUs that the model can be.
#pragma once

#include <cstddef>

namespace teon::gpusim {

// From "Technical Specifications per Compute Capability", CUDA C++ Programming Guide.
struct DeviceModel {
    const char* name;   // the value of CUDA_DEVICE
    const char* title;  // the name that the device reports
    int capability;     // 90: 9.0
    int multiprocessors;
    size_t block_shared, multiprocessor_shared;  // bytes; a block's maximum with opt-in by cudaFuncSetAttribute
};

// The bytes of shared memory that a kernel may use without opt-in.
inline constexpr size_t kSharedUnasked = 48 * 1024;

// Returns the model that the environment variable CUDA_DEVICE names, or the first one if it is not set. Throws
// UsageError if the name is not known.
const DeviceModel& find_device_model();

}  // namespace teon::gpusim
