// Allocations, copies and fills. Declared in cuda_runtime.h but for what tests set.
#pragma once

namespace teon::cpu {

// Strict: frees and copies of pageable memory do not wait, so that a program which relies on their waiting is found.
// Returns what it was; the environment variable CUDA_STRICT=1 begins so.
bool set_strict(bool on);

}  // namespace teon::cpu
