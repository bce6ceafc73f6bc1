// The machine's memory. cuda_runtime.h declares allocations, copies and fills.
#pragma once

#include <cstddef>

namespace teon::cpu {

inline constexpr size_t kAlignment = 256;  // of cudaMalloc
inline constexpr int kNaN = 0xff;          // a byte that, repeated, is NaN in every storage type

size_t total_memory();
// Returns the bytes that the system can provide without swapping and that a container's limit and the memory of a Slurm
// job (SLURM_MEM_PER_NODE) allow.
size_t available_memory();
// Returns whether the system has the memory for a request. Checks only large requests: the system would grant more than
// it has, and end the program later.
bool has_memory(size_t bytes);

}  // namespace teon::cpu
