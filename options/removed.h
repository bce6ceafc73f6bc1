// What earlier versions had and this one has not, as far as a run's config.json or checkpoint may name it.
#pragma once

#include <string>
#include <string_view>

#include "files/json.h"

namespace teon {

// Throws UsageError, which begins with `where`, if this version lacks the value that an option had.
void check_not_removed(std::string_view key, const Json& value, const std::string& where);
bool is_removed_flag(std::string_view key);

}  // namespace teon
