// Access to the modelled GPU, for tests of behaviour that only it shows, and to the device's counters.
#pragma once

#include <string>

#include "cpu/counts.h"
#include "runtime/vec.h"
#include "test/support/skip.h"

#if defined(TEON_CUDA)
#include <dlfcn.h>

#include "gpusim/control.h"
#endif

namespace teon::test {

#if defined(TEON_CUDA)

// Returns the modelled GPU's controls, null on a real GPU.
inline const gpusim::Control* model_gpu() {
    static const auto find = reinterpret_cast<decltype(&cudaModelControl)>(dlsym(RTLD_DEFAULT, "cudaModelControl"));
    return find ? find() : nullptr;
}

#define NEEDS_MODEL_GPU() \
    if (!teon::test::model_gpu()) SKIP_TEST("only a modelled GPU shows it")

// Sets a different order of streams during the object's lifetime.
struct ScopedOrder {
    explicit ScopedOrder(const std::string& order) : before(model_gpu()->set_order(order)) {}
    ~ScopedOrder() { model_gpu()->set_order(before); }
    ScopedOrder(ScopedOrder&&) = delete;
    std::string before;
};

// Returns the counts of calls to the device, null on a real GPU, which does not count them.
inline const cpu::Counters* counters() { return model_gpu() ? model_gpu()->counters : nullptr; }

#else

inline const cpu::Counters* counters() { return &cpu::counters; }

#endif

}  // namespace teon::test
