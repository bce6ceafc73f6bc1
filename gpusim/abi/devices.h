// The devices that the model can be.
#pragma once

#include <cstddef>

namespace teon::gpusim {

// "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide.
struct Device {
    const char* name;   // for CUDA_DEVICE
    const char* title;  // as it calls itself
    int capability;     // 90: 9.0
    int multiprocessors;
    size_t block_shared, multiprocessor_shared;  // bytes; a block's with the attribute that asks for more
};

// The one that CUDA_DEVICE names; H200 unless it is set. Says on stderr, once, that a model runs. Throws UsageError.
const Device& device();

inline constexpr size_t kSharedUnasked = 48 * 1024;
inline constexpr int kVersion = 13000;  // of the driver and of the runtime

}  // namespace teon::gpusim
