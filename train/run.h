// A training program from its command line to its exit status. The mains differ only in the model family they pass.
#pragma once

#include "model/family.h"

namespace teon {

// 0: done, or stopped and saved; 1: failed; 2: usage. A run that SIGINT has stopped has saved and ends by it. Errors
// are one line on standard error, beginning "<program>: error:".
int train_main(const ModelFamily& family, int argc, const char* const* argv);

}  // namespace teon
