// Device memory of the modelled GPU. Allocations have pages of their own. Only the device's work may access them, and
// only within live allocations. Any other access ends the program with a message that names the work and the byte.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cpu/include/cuda_runtime.h"

namespace teon::gpusim {

bool dry_run();  // whether CUDA_DRY is set: work is queued but does nothing, and memory is not limited

// The name of the running operation, for messages; null if none runs.
inline std::atomic<const char*> work_in_progress = nullptr;

// mapped: host memory for kernels. The host itself may not touch it, because nothing would order its accesses.
enum class Memory { pageable, pinned, mapped, device };

// Returns the addresses and sizes of all live allocations that a device's kernels may touch, by address.
std::vector<std::pair<uintptr_t, size_t>> device_allocations(int device);

// Allocates memory of a device or of the host between pages that cannot be touched; null if none is left. Releasing it,
// on behalf of the call `what`, fails if the matching call did not allocate it, or if something was written outside of
// it.
void* allocate_pages(size_t bytes, Memory kind, int device);
cudaError_t release_pages(const char* what, void* p, bool pinned);

// Returns the kind of the memory [p, p + bytes). If only part of it is in an allocation, or it was freed, `why` says
// so.
Memory memory_kind(const void* p, size_t bytes, std::string& why);

}  // namespace teon::gpusim
