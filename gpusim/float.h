// Floating-point instructions.
#pragma once

#include "gpusim/program.h"

namespace teon::gpusim {

void add_float_rows(Table& table);

}  // namespace teon::gpusim
