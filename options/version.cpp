#include "options/version.h"

namespace teon {

std::string_view source_version() {
#ifdef TEON_SOURCE_VERSION  // set by the Makefile from git, for this file alone
    return TEON_SOURCE_VERSION;
#else
    return "unknown";
#endif
}

}  // namespace teon
