// The error of a failed allocation of device memory or pinned host memory.
#pragma once

#include "base/check.h"

namespace teon {

// The message gives the bytes requested and available; callers add the purpose.
struct OutOfMemory : Error {
    using Error::Error;
};

}  // namespace teon
