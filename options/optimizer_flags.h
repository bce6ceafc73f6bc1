// The flags of the optimizer, its orthogonalizer and the learning rate's schedule.
#pragma once

#include "options/option_table.h"
#include "options/options.h"

namespace teon {

void add_optimizer_flags(OptionTable& table, Options& o);

}  // namespace teon
