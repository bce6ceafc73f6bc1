// The flag that a user may have meant.
#pragma once

#include <string>
#include <string_view>

namespace teon {

class OptionTable;

// Returns the end of a message about an unknown flag: "; did you mean --layers?" for the flag with the most similar
// spelling, "; write --lr X" or another sentence for a name from other programs, "" if no flag resembles it.
std::string suggestion(const OptionTable& table, std::string_view word);

}  // namespace teon
