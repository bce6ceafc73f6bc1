// What tests ask of the modelled GPU beside CUDA's functions. A real GPU has none of it.
#pragma once

#include <string>

#include "cpu/counts.h"

namespace teon::gpusim {

struct Control {
    std::string (*set_order)(const std::string& order);  // as CUDA_ORDER; returns the order before. Throws Error
    bool (*set_strict)(bool on);                          // as CUDA_STRICT; returns what it was
    void (*forget_device_error)();                        // a GPU would need a new process
    cpu::Counters* counters;
};

}  // namespace teon::gpusim

extern "C" const teon::gpusim::Control* cudaModelControl();
