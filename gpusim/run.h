// Runs a kernel: all blocks of a grid, on the threads of parallel_for.
#pragma once

#include <vector>

#include "gpusim/counts.h"

namespace teon::gpusim {

// The bytes of a launch's parameters; `arguments` point to one value for each.
std::vector<uint8_t> pack(const Program& program, const void* const* arguments);

// `memory` are the allocations that the kernel may touch, sorted. Adds what is executed to `counts`; null: nothing is
// counted. Throws the Error of the first block that fails.
void run(const Program& program, const Launch& launch, const std::vector<uint8_t>& parameters,
         const std::vector<Range>& memory, KernelCounts* counts = nullptr);

}  // namespace teon::gpusim
