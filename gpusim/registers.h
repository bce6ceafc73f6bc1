// Allocates places for registers in the register memory of a warp.
#pragma once

#include "gpusim/program.h"

namespace teon::gpusim {

// A register that PTX declares, or a constant.
struct Virtual {
    int bytes = 0;  // per lane; 0: a predicate
    bool is_constant = false;
    uint64_t bits = 0;
    bool from_dynamic = false;  // constants only: see Constant
};

// Places the registers in few bytes, so that registers that are live at the same time do not overlap. Turns the
// program's operands and guards, which are indices in `registers`, into byte offsets.
void place_registers(Program& program, const std::vector<Virtual>& registers);

}  // namespace teon::gpusim
