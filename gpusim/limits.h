// The limits of a launch ("Technical Specifications per Compute Capability", CUDA C++ Programming Guide).
#pragma once

#include "cpu/include/cuda_runtime.h"
#include "gpusim/device_models.h"
#include "gpusim/warp.h"

namespace teon::gpusim {

// The bytes of dynamic shared memory that a kernel may use on `device` with opt-in by cudaFuncSetAttribute, and without
// it: the block's shared memory less the kernel's static arrays.
size_t most_dynamic_shared(const Program& program, const GpuSheet& device);
size_t unasked_dynamic_shared(const Program& program);

// Returns an error if the device cannot run the launch. `granted`: the bytes of dynamic shared memory that the kernel
// may use.
cudaError_t check_launch(const Program& program, const GpuSheet& device, size_t granted, const Launch& launch);

}  // namespace teon::gpusim
