// From a module to a program.
#pragma once

#include "gpusim/program.h"

namespace teon::gpusim {

// Decodes the entry `name` of the module. Throws Error that names what is not known.
std::unique_ptr<Program> decode(const Module& module, const Symbols& symbols, std::string_view name);

// The rows of all files of instructions.
const Table& instruction_table();

}  // namespace teon::gpusim
