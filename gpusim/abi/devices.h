// The device that the model is.
#pragma once

#include "gpusim/device_models.h"

namespace teon::gpusim {

// The one that CUDA_DEVICE names; H200 unless it is set. Says on stderr, once, that a model runs. Throws UsageError.
const DeviceModel& device();

inline constexpr int kVersion = 13000;  // of the driver and of the runtime

}  // namespace teon::gpusim
