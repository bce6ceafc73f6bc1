#include "runtime/host_memory.h"

#include "cpu/system_memory.h"

namespace teon {

int64_t host_bytes_available() { return static_cast<int64_t>(cpu::available_memory()); }

}  // namespace teon
