// The version of the source from which this program was built.
#pragma once

#include <string_view>

namespace teon {

std::string_view source_version();  // "0.1.0 (1a2b3c4)", or with "+changes" for a tree that differs from the commit

}  // namespace teon
