// Whether tests run on a GPU, modelled or not.
#pragma once

#include "runtime/cuda/device.h"

namespace teon::test {

inline bool on_gpu() {
    static const bool is_gpu = device_info().is_gpu;  // a query for each value of a tensor would take minutes
    return is_gpu;
}

}  // namespace teon::test
