// The names of opcodes, numbered as they are first seen; of all programs of the process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace teon::gpusim {

uint16_t opcode_index(std::string_view name);
const std::string& opcode_name(uint16_t opcode);  // of an index that opcode_index() gave

}  // namespace teon::gpusim
