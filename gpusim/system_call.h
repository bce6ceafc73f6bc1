// The functions that the device's system provides and nvcc only declares: vprintf and __assertfail (CUDA C++
// Programming Guide, "Formatted Output", "Assertion").
#pragma once

#include <string>

#include "gpusim/warp.h"

namespace teon::gpusim {

// vprintf(format, arguments). Operands: where the lane has the two parameters and the result in its local memory.
// Prints to stdout when it runs; a GPU prints at the next synchronization.
void print_formatted(Warp&, const Instruction&, Lanes);

// __assertfail(message, file, line, function, character size). Operands: where the lane has the first four.
void fail_assertion(Warp&, const Instruction&, Lanes);

}  // namespace teon::gpusim
