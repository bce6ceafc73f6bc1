// Places for registers in the bytes of a warp.
#pragma once

#include "gpusim/program.h"

namespace teon::gpusim {

// A register as PTX declares it, or a constant.
struct Virtual {
    int bytes = 0;  // of a lane; 0: a predicate
    bool is_constant = false;
    uint64_t bits = 0;
    bool from_dynamic = false;  // of a constant, see Constant
};

// Gives registers that are needed at the same time places of their own, in few bytes: the program's operands and
// guards, until now indices of `registers`, become places.
void place_registers(Program& program, const std::vector<Virtual>& registers);

}  // namespace teon::gpusim
