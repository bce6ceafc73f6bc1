// The project's Python scripts, for programs that start them.
#pragma once

#include <string>
#include <vector>

namespace teon {

// Returns the commands that run scripts/NAME with these arguments: with the Python of the project's .venv, if it
// exists, which has the libraries, and with python3. Throws Error if the script is not found.
std::vector<std::vector<std::string>> script_commands(const std::string& name,
                                                      const std::vector<std::string>& arguments);

}  // namespace teon
