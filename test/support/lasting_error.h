// An error after which a GPU fails every later call of the process, such as an access to an invalid address.
#pragma once

#include <string>

namespace teon::test {

// Returns the message of such an error, or "". test/support/test_planted.cu sets it in programs that use a GPU.
inline std::string (*lasting_error)() = [] { return std::string(); };

}  // namespace teon::test
