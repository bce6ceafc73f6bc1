// Runs all blocks of a kernel's grid on the threads of parallel_for.
#pragma once

#include <vector>

#include "gpusim/counts.h"

namespace teon::gpusim {

// Packs the parameters of a launch into bytes; each of `arguments` points to the value of one parameter.
std::vector<uint8_t> pack(const Program& program, const void* const* arguments);

// Runs the kernel. `memory` lists the allocations that the kernel may access, sorted. Adds the counts of executed
// instructions to `counts`, unless it is null. Throws the Error of the first block that fails.
void run(const Program& program, const Launch& launch, const std::vector<uint8_t>& parameters,
         const std::vector<Range>& memory, KernelCounts* counts = nullptr);

}  // namespace teon::gpusim
