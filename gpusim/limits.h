// What a launch may ask of a device ("Technical Specifications per Compute Capability", CUDA C++ Programming Guide).
#pragma once

#include "cpu/include/cuda_runtime.h"
#include "gpusim/device_models.h"
#include "gpusim/warp.h"

namespace teon::gpusim {

// The bytes of dynamic shared memory that a kernel may use on `device` after cudaFuncSetAttribute, or unasked: what its
// static arrays leave of a block's.
size_t most_dynamic_shared(const Program& program, const DeviceModel& device);
size_t unasked_dynamic_shared(const Program& program);

// Refuses what the device cannot launch. `granted`: the bytes of dynamic shared memory that the kernel may use.
cudaError_t check_launch(const Program& program, const DeviceModel& device, size_t granted, const Launch& launch);

}  // namespace teon::gpusim
