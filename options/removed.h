// What earlier versions had and this one has not, as far as a run's config.json or checkpoint may name it.
#pragma once

#include <string>
#include <string_view>

#include "files/json.h"

namespace teon {

// Returns that this version lacks the value that an option had, and what to use; "" if it has it.
std::string why_removed(std::string_view key, const Json& value);
bool is_removed_flag(std::string_view key);

}  // namespace teon
