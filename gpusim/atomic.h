// Instructions that change memory in one step.
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

enum class AtomicOp : uint8_t { add, min, max, and_, or_, xor_, exch, cas, inc, dec };

void atomic(Warp&, const Instruction&, Lanes);
void atomic_add_half(Warp&, const Instruction&, Lanes);  // of one or two 16-bit floats; width: of bf16

}  // namespace teon::gpusim
