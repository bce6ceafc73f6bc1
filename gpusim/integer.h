// Integer and logic instructions.
#pragma once

#include "gpusim/program.h"

namespace teon::gpusim {

void add_integer_rows(Table& table);

}  // namespace teon::gpusim
