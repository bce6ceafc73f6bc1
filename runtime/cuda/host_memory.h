// The memory of the host, from which pinned memory comes.
#pragma once

#include <cstdint>

#include "cpu/system_memory.h"

namespace teon {

// Returns the bytes that the system can provide without swapping and a container's limit allows.
inline int64_t host_bytes_available() { return static_cast<int64_t>(cpu::available_memory()); }

}  // namespace teon
