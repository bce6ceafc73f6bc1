// What a launch may ask of the device.
#pragma once

#include <cstddef>

namespace teon::cpu {

// What is left of a block's shared memory for static arrays where a kernel uses dynamic memory too: the alignment of
// the dynamic array, which pads the static ones to as much.
inline constexpr size_t kStaticSharedBytes = 1024;

// Whether the device's library multiplies FP8: a CPU's does, NVIDIA's from compute capability 8.9 on.
bool multiplies_fp8();

}  // namespace teon::cpu
