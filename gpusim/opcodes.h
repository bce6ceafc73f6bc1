// The names of opcodes, numbered in the order of their first use, for all programs of the process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace teon::gpusim {

uint16_t opcode_index(std::string_view name);
const std::string& opcode_name(uint16_t opcode);  // takes an index from opcode_index()

}  // namespace teon::gpusim
