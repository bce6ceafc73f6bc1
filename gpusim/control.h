// What the modelled GPU offers to tests in addition to the CUDA API. A real GPU has no such functions.
#pragma once

#include <string>

#include "cpu/counts.h"

namespace teon::gpusim {

struct Control {
    std::string (*set_order)(const std::string& order);  // as CUDA_ORDER; returns the previous order; throws Error
    bool (*set_strict)(bool on);                         // as CUDA_STRICT; returns the previous setting
    void (*forget_device_error)();                       // on a GPU this takes a new process
    cpu::Counters* counters;
};

}  // namespace teon::gpusim

extern "C" const teon::gpusim::Control* cudaModelControl();
