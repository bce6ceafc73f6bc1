// The library that multiplies matrices on this machine, and the storage type that suits the machine.
#pragma once

#include <optional>
#include <string>

#include "base/dtype.h"

namespace teon {

// The library that multiplies matrices on this machine, and whether it multiplies bf16 with instructions for bf16.
struct LinalgLibrary {
    std::string name;  // with version, and a CPU's instruction set: "oneDNN 2.6.3 with AVX512_BF16"
    bool bf16 = false;
};
LinalgLibrary linalg_library();

// The requested storage type (reason "given"), or else the type that suits this machine, with the reason. Does not
// touch a device.
struct DTypeChoice {
    DType dtype;
    std::string reason;
};
DTypeChoice choose_dtype(std::optional<DType> asked);

}  // namespace teon
