#include "runtime/cuda/named_range.h"

#if defined(TEON_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

teon::NamedRange::NamedRange(const char* name) { nvtxRangePushA(name); }
teon::NamedRange::~NamedRange() { nvtxRangePop(); }

#else

teon::NamedRange::NamedRange(const char*) {}
teon::NamedRange::~NamedRange() = default;

#endif
