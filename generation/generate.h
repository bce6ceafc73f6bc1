// Text from a checkpoint, from the command line to the exit status.
#pragma once

#include <vector>

#include "model/family.h"

namespace teon {

// 0: done; 1: failed; 2: usage. Errors are one line on standard error, beginning "generate: error:".
int generate_main(const std::vector<ModelFamily>& families, int argc, const char* const* argv);

}  // namespace teon
