// The type for f16: the compiler's, or this project's if the compiler has none (g++ 11).
#pragma once

#include "base/dtype.h"

namespace teon::gpusim {

#ifdef __FLT16_MANT_DIG__
using Float16 = _Float16;
#else
using Float16 = f16;
#endif

}  // namespace teon::gpusim
