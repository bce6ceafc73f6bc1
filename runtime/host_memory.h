// The memory of the host, from which pinned memory comes.
#pragma once

#include <cstdint>

namespace teon {

// Returns the bytes that the system can provide without swapping and a container's limit allows.
int64_t host_bytes_available();

}  // namespace teon
