// Every flag of the training programs. One row of a table gives parsing, help, range checks, the config file's key and
// the logged value. Reading options touches no device.
#pragma once

#include "options/option_table.h"
#include "options/options.h"

namespace teon {

// Returns a table with a row per flag. Rows set fields of `o`, whose present values are the defaults.
OptionTable option_table(const ModelFamily& family, Options& o);

}  // namespace teon
