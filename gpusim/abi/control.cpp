#include "gpusim/control.h"

#include "cpu/error.h"
#include "cpu/memory.h"
#include "cpu/stream.h"

extern "C" const teon::gpusim::Control* cudaModelControl() {
    using namespace teon;
    static const gpusim::Control control = {cpu::set_order, cpu::set_strict, cpu::forget_device_error, &cpu::counters};
    return &control;
}
