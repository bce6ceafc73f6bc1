// The device that the model represents. A machine has 8 of them; CUDA_VISIBLE_DEVICES lists those of the process.
#pragma once

#include "gpusim/device_models.h"

namespace teon::gpusim {

// Returns the device that CUDA_DEVICE names; H200 if it is not set. Reports on stderr, once, that a model runs.
const GpuSheet& device();

int threads_of_multiprocessor();
int blocks_of_multiprocessor();

inline constexpr int kVersion = 13000;  // of the driver and of the runtime

}  // namespace teon::gpusim
