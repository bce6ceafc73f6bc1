// Limits of the CPU as a device.
#pragma once

#include <cstddef>

namespace teon::cpu {

// Bytes of a block's shared memory that are reserved for static arrays if a kernel also uses dynamic shared memory. It
// is the alignment of the dynamic array, to which the static arrays are padded.
inline constexpr size_t kStaticSharedBytes = 1024;

}  // namespace teon::cpu
