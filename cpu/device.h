// Limits and abilities of the device.
#pragma once

#include <cstddef>

namespace teon::cpu {

// Bytes of a block's shared memory that are reserved for static arrays if a kernel also uses dynamic shared memory. It
// is the alignment of the dynamic array, to which the static arrays are padded.
inline constexpr size_t kStaticSharedBytes = 1024;

// Returns whether the device's library multiplies FP8: always on a CPU, from compute capability 8.9 on with NVIDIA's.
bool multiplies_fp8();

}  // namespace teon::cpu
