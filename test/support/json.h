// Json in the messages of failed tests, and as the library's type, another reader of the text that is written.
#pragma once

#include <nlohmann/json.hpp>

#include "files/json.h"
#include "test/support/catch.h"

namespace Catch {

template <>
struct StringMaker<teon::Json> {
    static std::string convert(const teon::Json& value) { return teon::json_text(value, {.any_bytes = true}); }
};

}  // namespace Catch

namespace teon::test {

inline nlohmann::json library_json(const Json& value) { return nlohmann::json::parse(json_text(value)); }
inline Json our_json(const nlohmann::json& value) {
    return parse_json(nlohmann::json{{"value", value}}.dump(), "value")["value"];
}

}  // namespace teon::test
