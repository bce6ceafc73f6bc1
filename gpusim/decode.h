// Decodes a kernel of a PTX module into a program.
#pragma once

#include "gpusim/program.h"

namespace teon::gpusim {

// Decodes the entry `name` of the module. Throws Error, which names what the decoder does not know.
std::unique_ptr<Program> decode(const Module& module, const Symbols& symbols, std::string_view name);

// The instruction table: the rows of all files that implement instructions.
const Table& instruction_table();

}  // namespace teon::gpusim
