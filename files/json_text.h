// JSON as text. Each file that calls the library's own functions for this takes a second longer to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace teon {

// Returns the value on one line or, with an indent, on several. Invalid UTF-8 throws, or becomes U+FFFD if `replaces`.
std::string json_text(const nlohmann::json& value, int indent = -1, bool replaces = false);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

// Parses text that this program wrote; files are read by read_json (files/json.h).
nlohmann::json json_of_text(const std::string& text);

}  // namespace teon
