// A training program from its command line to its exit status. The mains differ only in the model family they pass.
#pragma once

#include "model/family.h"

namespace teon {

// Returns the exit status: 0 if the run is done; --exit-when-stopped's (0) on rank 0 if it was stopped and has saved; 1
// if it failed; 2 for wrong usage. A run
// that SIGINT stops saves and then ends by that signal. Errors are one line on standard error that begins with
// "<program>: error:".
int train_main(const ModelFamily& family, int argc, const char* const* argv);

}  // namespace teon
