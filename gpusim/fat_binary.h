// The container in which nvcc puts a file's device code into a program.
#pragma once

#include <string>

namespace teon::gpusim {

// The PTX that a device of this compute capability (80, 89, 90, ...) runs: of the highest architecture that it can.
// sm_90a is for 90 alone. Throws Error if there is none, or none that is uncompressed (nvcc --no-compress).
std::string ptx_of_fat_binary(const void* wrapper, int capability);

}  // namespace teon::gpusim
