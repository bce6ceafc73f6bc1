// The library that multiplies matrices here, and the storage type that suits this machine.
#pragma once

#include <optional>
#include <string>

#include "base/dtype.h"

namespace teon {

// What multiplies matrices on this machine, and whether it multiplies bf16 by instructions made for that.
struct LinalgLibrary {
    std::string name;  // with version, and a CPU's instruction set: "oneDNN 2.6.3 with AVX512_BF16"
    bool bf16 = false;
};
LinalgLibrary linalg_library();

// The storage type that was asked for (reason "given"), or else the one that suits this machine, and why. Touches no
// device.
struct DTypeChoice {
    DType dtype;
    std::string reason;
};
DTypeChoice choose_dtype(std::optional<DType> asked);

}  // namespace teon
