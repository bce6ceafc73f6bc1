// What a kernel executed, instruction by instruction, and what its accesses to memory cost a GPU.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "gpusim/warp.h"

namespace teon::gpusim {

// Of one instruction. Device memory is moved in sectors of 32 bytes, shared memory in wavefronts of one word of each of
// its 32 banks ("CUDA C++ Best Practices Guide", "Coalesced Access to Global Memory", "Shared Memory and Memory
// Banks"); accesses of 8 and 16 bytes are done for 16 and 8 lanes at a time.
struct Count {
    uint64_t warps = 0, lanes = 0;            // executions by a warp, and by its lanes
    uint64_t transactions = 0, at_least = 0;  // sectors or wavefronts; those that hold as many different words at best
};

// Of a kernel, of all its launches.
struct KernelCounts {
    std::mutex mutex;
    uint64_t launches = 0;
    std::vector<Count> code;  // by instruction
    void add(const std::vector<Count>& more);
};

// An access of `bytes` by each lane at the addresses, to device memory or at offsets in shared memory.
void count_sectors(Count& count, const uint64_t* addresses, Lanes lanes, uint32_t bytes);
void count_wavefronts(Count& count, const uint64_t* addresses, Lanes lanes, uint32_t bytes);

}  // namespace teon::gpusim
