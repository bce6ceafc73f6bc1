// Runs a kernel: all blocks of a grid, on the threads of parallel_for.
#pragma once

#include <vector>

#include "gpusim/warp.h"

namespace teon::gpusim {

// The bytes of a launch's parameters; `arguments` point to one value for each.
std::vector<uint8_t> pack(const Program& program, const void* const* arguments);

// `memory` are the allocations that the kernel may touch, sorted. Throws the Error of the first block that fails.
void run(const Program& program, const Launch& launch, const std::vector<uint8_t>& parameters,
         const std::vector<Range>& memory);

// Instructions that were executed so far: a warp's count once, or once for each of its lanes.
struct Executed {
    uint64_t by_warps = 0, by_threads = 0;
};
Executed executed();

}  // namespace teon::gpusim
