// Allocations, copies and fills. cuda_runtime.h declares them; here is only a setting for tests.
#pragma once

namespace teon::gpusim {

// Sets strict mode and returns the previous setting; the environment variable CUDA_STRICT=1 sets it at the start. In
// strict mode frees and copies of pageable memory do not wait, so that a program that relies on this fails.
bool set_strict(bool on);

}  // namespace teon::gpusim
