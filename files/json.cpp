#include "files/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "files/file.h"

namespace teon {

Json Json::of_unsigned(uint64_t value) {
    if (std::in_range<int64_t>(value)) return static_cast<int64_t>(value);
    Json result;
    result.kind_ = Kind::unsigned_integer;
    result.unsigned_ = value;
    return result;
}
Json::Json(std::string text) : kind_(Kind::text), text_(new std::string(std::move(text))) {}
Json::Json(std::string_view text) : Json(std::string(text)) {}
Json::Json(const char* text) : Json(std::string(text)) {}
Json::Json(std::initializer_list<Member> members) : Json(object()) {
    for (const auto& [key, value] : members) (*this)[key] = value;
}

Json Json::array(std::initializer_list<Json> items) {
    Json result;
    result.array_ = new Array(items);
    result.kind_ = Kind::array;
    return result;
}

Json Json::object() {
    Json result;
    result.object_ = new Object();
    result.kind_ = Kind::object;
    return result;
}

Json::Json(const Json& other) : position_(other.position_), unsigned_(other.unsigned_) {
    if (other.is_text()) text_ = new std::string(*other.text_);
    if (other.is_array()) array_ = new Array(*other.array_);
    if (other.is_object()) object_ = new Object(*other.object_);
    kind_ = other.kind_;
}

Json::Json(Json&& other) noexcept : kind_(other.kind_), position_(other.position_), unsigned_(other.unsigned_) {
    other.kind_ = Kind::null;
}

// The position in an object stays: the member has another value.
Json& Json::operator=(Json other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(unsigned_, other.unsigned_);
    return *this;
}

Json::~Json() {
    if (is_text()) delete text_;
    if (is_array()) delete array_;
    if (is_object()) delete object_;
}

size_t Json::size() const { return is_array() ? items().size() : members().size(); }

const Json::Array& Json::items() const& {
    static const Array none;
    return is_array() ? *array_ : none;
}

Json::Array& Json::items() & {
    CHECK_USAGE(is_array(), "{} is not an array", shown(*this));
    return *array_;
}

Json& Json::push_back(Json item) { return items().emplace_back(std::move(item)); }

const Json::Object& Json::members() const& {
    static const Object none;
    return is_object() ? *object_ : none;
}

std::vector<const Json::Object::value_type*> Json::members_in_order() const {
    std::vector<const Object::value_type*> all;
    for (const auto& member : members()) all.push_back(&member);
    std::sort(all.begin(), all.end(), [](auto* a, auto* b) { return a->second.position_ < b->second.position_; });
    return all;
}

bool Json::contains(std::string_view key) const { return members().contains(key); }

const Json& Json::operator[](std::string_view key) const {
    static const Json null;
    const auto member = members().find(key);
    return member == members().end() ? null : member->second;
}

Json& Json::operator[](std::string_view key) {
    if (is_null()) *this = object();
    CHECK_USAGE(is_object(), "{} is not an object", shown(*this));
    const auto [member, is_new] = object_->try_emplace(std::string(key));
    if (is_new) member->second.position_ = static_cast<int>(object_->size());
    return member->second;
}

void Json::erase(std::string_view key) {
    CHECK_USAGE(is_object(), "{} is not an object", shown(*this));
    const auto erased = object_->find(key);
    if (erased == object_->end()) return;
    for (auto& [name, member] : *object_) member.position_ -= member.position_ > erased->second.position_;
    object_->erase(erased);
}

void Json::update(const Json& object) {
    for (const auto* member : object.members_in_order()) (*this)[member->first] = member->second;
}

bool operator==(const Json& a, const Json& b) {
    if (a.is_number() && b.is_number() && a.kind_ != b.kind_) return a.number() == b.number();
    if (a.kind_ != b.kind_) return false;
    switch (a.kind_) {
        case Json::Kind::null:
            return true;
        case Json::Kind::boolean:
        case Json::Kind::integer:
            return a.integer_ == b.integer_;
        case Json::Kind::unsigned_integer:
            return a.unsigned_ == b.unsigned_;
        case Json::Kind::real:
            return a.real_ == b.real_;
        case Json::Kind::text:
            return *a.text_ == *b.text_;
        case Json::Kind::array:
            return *a.array_ == *b.array_;
        case Json::Kind::object:
            return *a.object_ == *b.object_;
    }
    return false;
}

Json read_json(const std::string& path, const JsonLimits& limits) {
    return parse_json(read_text(path, limits.bytes), path, limits);
}

double Json::number() const {
    if (kind_ == Kind::integer) return static_cast<double>(integer_);
    return kind_ == Kind::unsigned_integer ? static_cast<double>(unsigned_) : real_;
}

template <typename T>
T Json::get(const std::string& where) const {
    const auto expect = [&](bool ok, const char* what) {
        CHECK_USAGE(ok, "{} is {}, expected {}", where, shown(*this), what);
    };
    if constexpr (std::is_same_v<T, Json>) {
        return *this;
    } else if constexpr (std::is_same_v<T, bool>) {
        expect(is_boolean(), "true or false");
        return integer_ != 0;
    } else if constexpr (std::is_same_v<T, std::string>) {
        expect(is_text(), "a text");
        return *text_;
    } else if constexpr (std::is_integral_v<T>) {
        expect(is_whole(), "a whole number");
        const bool is_signed = kind_ == Kind::integer;
        expect(is_signed ? std::in_range<T>(integer_) : std::in_range<T>(unsigned_), "a smaller number");
        return is_signed ? static_cast<T>(integer_) : static_cast<T>(unsigned_);
    } else {
        expect(is_number(), "a number");
        expect(std::abs(number()) <= static_cast<double>(std::numeric_limits<T>::max()), "a smaller number");
        return static_cast<T>(number());
    }
}

#define INSTANTIATE(T) template T Json::get<T>(const std::string&) const
INSTANTIATE(Json);
INSTANTIATE(bool);
INSTANTIATE(int);
INSTANTIATE(unsigned);
INSTANTIATE(int64_t);
INSTANTIATE(uint64_t);
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(std::string);
#undef INSTANTIATE

JsonObject::JsonObject(const Json& object, std::string name) : object_(object), name_(std::move(name)) {
    CHECK_USAGE(object.is_object(), "{} is {}, expected an object", name_, shown(object));
}

const Json& JsonObject::member(const std::string& key) const {
    CHECK_USAGE(object_.contains(key), "{}: {} is missing", name_, key);
    return object_[key];
}

}  // namespace teon
