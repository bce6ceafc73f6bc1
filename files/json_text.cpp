#include "files/json_text.h"

#include <nlohmann/json.hpp>

namespace teon {

using nlohmann::json;

std::string json_text(const json& value, int indent, bool replaces) {
    return value.dump(indent, ' ', false, replaces ? json::error_handler_t::replace : json::error_handler_t::strict);
}
std::string json_text(const nlohmann::ordered_json& value, int indent) { return value.dump(indent); }
json json_of_text(const std::string& text) { return json::parse(text); }

}  // namespace teon
