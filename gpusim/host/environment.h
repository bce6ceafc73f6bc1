// Settings from the environment. Programs in other languages, or without exceptions, call this library: a wrong setting
// ends the program with one line.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>

namespace teon::gpusim {

// Returns read(). If it throws, prints the reason and ends the program with status 2.
template <typename Read>
auto from_environment(Read&& read) -> decltype(read()) {
    try {
        return read();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        std::fflush(nullptr);
        std::_Exit(2);
    }
}

}  // namespace teon::gpusim
