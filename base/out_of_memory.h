// What is thrown where memory cannot be had: of the device, or pinned memory of the host.
#pragma once

#include "base/check.h"

namespace teon {

// Says how many bytes were wanted and how many there are. Who knows what they were for adds that.
struct OutOfMemory : Error {
    using Error::Error;
};

}  // namespace teon
