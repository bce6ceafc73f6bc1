// The GPUs that can be modelled.
#pragma once

#include <cstddef>

namespace teon::gpusim {

// "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide.
struct DeviceModel {
    const char* name;   // for CUDA_DEVICE
    const char* title;  // as it calls itself
    int capability;     // 90: 9.0
    int multiprocessors;
    size_t block_shared, multiprocessor_shared;  // bytes; a block's with the attribute that asks for more
};

// The bytes of shared memory that a kernel may use without that attribute.
inline constexpr size_t kSharedUnasked = 48 * 1024;

// The one that the environment variable CUDA_DEVICE names, the first if it is not set. Throws UsageError.
const DeviceModel& find_device_model();

}  // namespace teon::gpusim
