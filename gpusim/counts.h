// Counts what a kernel executes, by instruction, and what its memory accesses cost on a GPU.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "gpusim/warp.h"

namespace teon::gpusim {

// The counts of one instruction. Device memory is accessed in sectors of 32 bytes, shared memory in wavefronts of one
// 4-byte word from each of its 32 banks ("CUDA C++ Best Practices Guide", "Coalesced Access to Global Memory", "Shared
// Memory and Memory Banks"). A wavefront serves at most 16 lanes if they access 8 bytes each, and 8 lanes if 16 bytes.
struct Count {
    uint64_t warps = 0, lanes = 0;            // executions by warps and by lanes
    uint64_t transactions = 0, at_least = 0;  // sectors or wavefronts; the fewest for as many distinct words
};

// The counts of a kernel, over all its launches.
struct KernelCounts {
    std::mutex mutex;
    uint64_t launches = 0;
    std::vector<Count> code;  // by instruction
    void add(const std::vector<Count>& more);
};

// Count an access of `bytes` by each of the lanes. The addresses are in device memory or, for count_wavefronts, may be
// offsets in shared memory.
void count_sectors(Count& count, const uint64_t* addresses, Lanes lanes, uint32_t bytes);
void count_wavefronts(Count& count, const uint64_t* addresses, Lanes lanes, uint32_t bytes);

}  // namespace teon::gpusim
