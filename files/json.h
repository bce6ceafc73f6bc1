// All JSON files are read by this code: config.json, tokenizer.json, trainer.json, manifest.json, the safetensors
// header, metrics.jsonl. Size, depth and number of values are limited during parsing, so a hostile file takes at most a
// fixed multiple of its allowed size in memory, and time proportional to its length.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"

namespace teon {

struct JsonLimits {
    int64_t bytes = int64_t{64} << 20;
    int depth = 64;              // of nested arrays and objects
    int64_t values = 4'000'000;  // a tokenizer of 256k tokens and merges has 1.5 million
};

// Parses a JSON object. Throws UsageError that begins with `name` if the text is not valid JSON (line and column), is
// not an object, repeats a key within an object, or exceeds the limits.
nlohmann::json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits = {});
nlohmann::json read_json(const std::string& path, const JsonLimits& limits = {});

// Returns the value as JSON in ASCII, shortened, for messages. Invalid UTF-8 becomes U+FFFD.
std::string shown(const nlohmann::json& value);

bool is_utf8(std::string_view text);

// Returns the value as a T without conversion: bool, a whole number within T's range, a finite float or double,
// std::string, or any json. Throws UsageError "WHERE is 3.5, expected a whole number".
template <typename T>
T json_value(const nlohmann::json& value, const std::string& where);

// A view of a JSON object, with the name of its file for messages. The object must outlive it.
class JsonObject {
public:
    // Throws UsageError if it is not an object.
    JsonObject(const nlohmann::json& object, std::string name);
    const std::string& name() const { return name_; }
    bool has_key(const std::string& key) const;  // which may be null
    bool has(const std::string& key) const;
    // Throws UsageError naming file and key if it is missing or not a T.
    template <typename T>
    T at(const std::string& key) const {
        return json_value<T>(member(key), name_ + ": " + key);
    }
    // Returns `otherwise` if the key is absent or null.
    template <typename T>
    T get(const std::string& key, T otherwise) const {
        return has(key) ? at<T>(key) : otherwise;
    }

private:
    const nlohmann::json& member(const std::string& key) const;

    const nlohmann::json& object_;
    std::string name_;
};

}  // namespace teon
