// All JSON files are read by this code: config.json, tokenizer.json, trainer.json, manifest.json, the safetensors
// header, metrics.jsonl. Size, depth and number of values are limited during parsing, so a hostile file takes at most a
// fixed multiple of its allowed size in memory, and time proportional to its length.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

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
T json_value(const nlohmann::json& value, const std::string& where) {
    const auto expect = [&](bool ok, const char* what) {
        CHECK_USAGE(ok, "{} is {}, expected {}", where, shown(value), what);
    };
    if constexpr (std::is_same_v<T, nlohmann::json>) {
        return value;
    } else if constexpr (std::is_same_v<T, bool>) {
        expect(value.is_boolean(), "true or false");
        return value.get<bool>();
    } else if constexpr (std::is_integral_v<T>) {
        expect(value.is_number_integer(), "a whole number");
        expect(value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>())
                                          : std::in_range<T>(value.get<int64_t>()),
               "a smaller number");
        return value.get<T>();
    } else if constexpr (std::is_floating_point_v<T>) {
        expect(value.is_number(), "a number");
        expect(std::abs(value.get<double>()) <= static_cast<double>(std::numeric_limits<T>::max()), "a smaller number");
        return value.get<T>();
    } else {
        static_assert(std::is_same_v<T, std::string>);
        expect(value.is_string(), "a text");
        return value.get<std::string>();
    }
}

// A view of a JSON object, with the name of its file for messages. The object must outlive it.
class JsonObject {
public:
    // Throws UsageError if it is not an object.
    JsonObject(const nlohmann::json& object, std::string name) : object_(object), name_(std::move(name)) {
        CHECK_USAGE(object.is_object(), "{} is {}, expected an object", name_, shown(object));
    }
    const std::string& name() const { return name_; }
    bool has_key(const std::string& key) const { return object_.contains(key); }  // which may be null
    bool has(const std::string& key) const { return object_.contains(key) && !object_[key].is_null(); }
    // Throws UsageError naming file and key if it is missing or not a T.
    template <typename T>
    T at(const std::string& key) const {
        CHECK_USAGE(object_.contains(key), "{}: {} is missing", name_, key);
        return json_value<T>(object_[key], name_ + ": " + key);
    }
    // Returns `otherwise` if the key is absent or null.
    template <typename T>
    T get(const std::string& key, T otherwise) const {
        return has(key) ? at<T>(key) : otherwise;
    }

private:
    const nlohmann::json& object_;
    std::string name_;
};

}  // namespace teon
