// The container in which nvcc embeds the device code of a source file in a program.
#pragma once

#include <string>

#include "base/check.h"

namespace teon::gpusim {

struct NoCode : Error {
    using Error::Error;
};

// Returns the PTX for the highest architecture that a device of this compute capability (80, 89, 90, ...) can run. PTX
// for sm_90a runs on 90 only. Throws NoCode if there is no such PTX, or only compressed PTX (nvcc --no-compress avoids
// it).
std::string ptx_of_fat_binary(const void* wrapper, int capability);

}  // namespace teon::gpusim
