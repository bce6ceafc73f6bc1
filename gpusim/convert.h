// Conversions between types.
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

void convert_width(Warp&, const Instruction&, Lanes);

void add_conversion_rows(Table& table);

}  // namespace teon::gpusim
