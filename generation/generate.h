// The program ./generate: samples text from a checkpoint.
#pragma once

#include <vector>

#include "model/family.h"

namespace teon {

// Returns the exit status: 0 for success, 1 for a failure, 2 for wrong usage. An error is one line on standard error
// that begins with "generate: error:".
int generate_main(const std::vector<ModelFamily>& families, int argc, const char* const* argv);

}  // namespace teon
