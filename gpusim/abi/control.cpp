#include "gpusim/control.h"

#include "cpu/error.h"
#include "gpusim/host/memory.h"
#include "gpusim/host/schedule.h"

extern "C" const teon::gpusim::Control* cudaModelControl() {
    using namespace teon;
    static const gpusim::Control control = {gpusim::set_order, gpusim::set_strict, cpu::forget_device_error,
                                            &cpu::counters};
    return &control;
}
