// What a save does, tried on a disk before a run begins.
#pragma once

#include <string>

#include "files/file_ops.h"

namespace teon {

// Does in the run's folder what writing a checkpoint does, with an empty one, and removes it. Throws UsageError naming
// the operation that the disk refuses. Returns why it refuses symbolic links, which a run can do without, or "".
std::string rehearse_save(const std::string& run_folder, FileOps& files = system_files());

}  // namespace teon
