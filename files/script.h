// The project's Python scripts, for programs that ask them.
#pragma once

#include <string>
#include <vector>

#include "files/json.h"
#include "files/line_server.h"

namespace teon {

// A script that answers each JSON object with one.
class Script {
public:
    // Starts scripts/NAME with these arguments: with the Python of the project's .venv, which has the libraries, or
    // else with python3. patience_s: LineServer's. Throws Error if the script is not found or cannot be started.
    Script(const std::string& name, const std::vector<std::string>& arguments, double patience_s);

    // Returns the value of `key` in the answer. Throws UsageError with the `error` in the answer, if there is one, and
    // Error like LineServer::ask().
    Json ask(const Json& request, const char* key);

private:
    std::string name_;
    LineServer server_;
};

}  // namespace teon
