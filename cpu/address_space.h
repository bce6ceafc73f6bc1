// The limit of a process's address space (`ulimit -v`), which batch systems use to limit memory.
#pragma once

#include <cstdint>
#include <optional>

namespace teon::cpu {

// Returns the bytes that the limit leaves, or nullopt if there is no limit.
std::optional<int64_t> address_space_left();

// The bytes that the libraries (oneDNN, LAPACK, malloc's arenas, stacks of threads) take beside the model. Not
// all of them report that they got none, so a program refuses to start with less.
int64_t address_space_of_libraries();

}  // namespace teon::cpu
