// The GPUs that the test build passes for and the modelled GPU is, and which of a machine's devices a thread uses.
#pragma once

#include <cstddef>

namespace teon::cpu {

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

// The one that CUDA_DEVICE, or else `otherwise`, names; null if neither does. Throws UsageError.
const DeviceModel* find_device_model(const char* otherwise = nullptr);

// The calling thread's device. Of the test build, CUDA_VISIBLE_DEVICES lists those that the process has; they are of
// one model, and one machine has 8. Without the variable there is one.
int current_device();
// Whether there is a device of this number.
bool is_device(int index);

}  // namespace teon::cpu
