// The error of an allocation that fails: of device memory, or of pinned host memory.
#pragma once

#include "base/check.h"

namespace teon {

// The message gives the bytes requested and available; callers add what they were for.
struct OutOfMemory : Error {
    using Error::Error;
};

}  // namespace teon
