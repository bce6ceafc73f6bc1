// JSON: config.json, tokenizer.json, trainer.json, manifest.json, the safetensors header, metrics.jsonl. Only
// json_text.cpp includes the library that reads and writes the text, nlohmann-json: a second of each compile, and
// 230 MB.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"

namespace teon {

// A JSON value. Json{{"a", 1}, {"b", {{"c", 2}}}} is an object; an array is made by array(). Functions for another kind
// of value than this one throw UsageError if they change it; those that only read see nothing, as in an empty one.
class Json {
public:
    struct Member;
    using Array = std::vector<Json>;
    using Object = std::map<std::string, Json, std::less<>>;
    enum class Kind : uint8_t { null, boolean, integer, unsigned_integer, real, text, array, object };

    Json(std::nullptr_t = nullptr) {}
    Json(std::same_as<bool> auto value) : kind_(Kind::boolean), integer_(value) {}
    Json(std::signed_integral auto value) : kind_(Kind::integer), integer_(value) {}
    template <std::unsigned_integral T>
    requires(!std::same_as<T, bool>) Json(T value) : Json(of_unsigned(value)) {}
    Json(std::floating_point auto value) : kind_(Kind::real), real_(value) {}
    Json(std::string text);
    Json(std::string_view text);
    Json(const char* text);
    Json(std::initializer_list<Member> members);
    Json(const Json& other);
    Json(Json&& other) noexcept;
    Json& operator=(Json other) noexcept;
    ~Json();

    static Json array(std::initializer_list<Json> items = {});
    static Json object();
    template <typename T>
    static Json array_of(const std::vector<T>& items) {
        Json result = array();
        for (const T& item : items) result.push_back(item);
        return result;
    }

    Kind kind() const { return kind_; }
    bool is_null() const { return kind_ == Kind::null; }
    bool is_boolean() const { return kind_ == Kind::boolean; }
    bool is_number() const { return is_whole() || kind_ == Kind::real; }
    bool is_whole() const { return kind_ == Kind::integer || kind_ == Kind::unsigned_integer; }  // no point or exponent
    bool is_text() const { return kind_ == Kind::text; }
    bool is_array() const { return kind_ == Kind::array; }
    bool is_object() const { return kind_ == Kind::object; }
    bool is_container() const { return is_array() || is_object(); }

    // Returns the value as a T without conversion: bool, a whole number within T's range, a finite float or double,
    // std::string, or any Json. Throws UsageError "WHERE is 3.5, expected a whole number".
    template <typename T>
    T get(const std::string& where = "a value in JSON") const;

    double number() const;  // of a number, also of NaN and infinity, which are null in text

    size_t size() const;  // of an array or object; otherwise 0
    const Array& items() const&;
    Array& items() &;
    void items() && = delete;  // they would end with it
    Json& push_back(Json item);

    const Object& members() const&;  // by key
    void members() && = delete;
    std::vector<const Object::value_type*> members_in_order() const;  // as they were added
    bool contains(std::string_view key) const;
    const Json& operator[](std::string_view key) const;  // null if there is no such key
    Json& operator[](std::string_view key);              // adds the key
    void erase(std::string_view key);
    void update(const Json& object);  // takes over its members
    // Returns the value of the key, or `otherwise` if there is no such key.
    template <typename T>
    T value(std::string_view key, T otherwise) const {
        return contains(key) ? (*this)[key].get<T>() : std::move(otherwise);
    }
    std::string value(std::string_view key, const char* otherwise) const { return value(key, std::string(otherwise)); }

    friend bool operator==(const Json& a, const Json& b);  // 1 equals 1.0; the order of members does not count

private:
    static Json of_unsigned(uint64_t value);

    Kind kind_ = Kind::null;
    int position_ = 0;  // of a member, among those of its object
    union {
        int64_t integer_ = 0;  // also 0 or 1 for a boolean
        uint64_t unsigned_;    // above INT64_MAX
        double real_;
        std::string* text_;
        Array* array_;
        Object* object_;
    };
};

struct Json::Member {
    std::string key;
    Json value;
};

struct JsonLimits {
    int64_t bytes = int64_t{64} << 20;
    int depth = 64;              // of nested arrays and objects
    int64_t values = 4'000'000;  // a tokenizer of 256k tokens and merges has 1.5 million
};

// Parses a JSON object. Size, depth and number of values are limited during parsing, so a hostile file takes at most a
// fixed multiple of its allowed size in memory, and time proportional to its length. Throws UsageError that begins with
// `name` if the text is not valid JSON (line and column), is not an object, repeats a key within an object, or exceeds
// the limits.
Json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits = {});
Json read_json(const std::string& path, const JsonLimits& limits = {});

struct JsonStyle {
    int indent = -1;         // spaces per level; -1: one line
    bool in_order = false;   // members as they were added, not by key
    bool ascii = false;      // other characters are escaped
    bool any_bytes = false;  // invalid UTF-8 becomes U+FFFD; otherwise it throws an exception
};
std::string json_text(const Json& value, const JsonStyle& style = {});

// Returns the value as JSON in ASCII, shortened, for messages. Invalid UTF-8 becomes U+FFFD.
std::string shown(const Json& value);

bool is_utf8(std::string_view text);

// A view of a JSON object, with the name of its file for messages. The object must outlive it.
class JsonObject {
public:
    // Throws UsageError if it is not an object.
    JsonObject(const Json& object, std::string name);
    const std::string& name() const { return name_; }
    bool has_key(const std::string& key) const { return object_.contains(key); }  // which may be null
    bool has(const std::string& key) const { return !object_[key].is_null(); }
    // Throws UsageError naming file and key if it is missing or not a T.
    template <typename T>
    T at(const std::string& key) const {
        return member(key).get<T>(name_ + ": " + key);
    }
    // Returns `otherwise` if the key is absent or null.
    template <typename T>
    T get(const std::string& key, T otherwise) const {
        return has(key) ? at<T>(key) : otherwise;
    }

private:
    const Json& member(const std::string& key) const;

    const Json& object_;
    std::string name_;
};

}  // namespace teon
