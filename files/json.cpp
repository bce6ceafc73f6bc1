#include "files/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "files/file.h"

namespace teon {

namespace {

template <typename T>
constexpr bool kIsNumber = std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t> || std::is_same_v<T, double>;

// Returns the value's content of type T; null if it is of another type.
template <typename T>
const T* content(const Json& value) {
    const auto* boxed = std::get_if<Boxed<T>>(&value.kind());
    return boxed ? &**boxed : nullptr;
}

}  // namespace

Json::Json(Value value) : value_(std::move(value)) {}
Json::Json(std::nullptr_t) : Json(Value(nullptr)) {}
Json::Json(std::string text) : Json(Value(Boxed(std::move(text)))) {}
Json::Json(std::string_view text) : Json(std::string(text)) {}
Json::Json(const char* text) : Json(std::string(text)) {}
Json::Json(std::initializer_list<Member> members) : Json(object()) {
    for (const auto& [key, value] : members) (*this)[key] = value;
}
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) {
    value_ = Value(other.value_);  // of which *this may be a part
    return *this;
}
Json& Json::operator=(Json&& other) noexcept {
    value_ = Value(std::move(other.value_));
    return *this;
}
Json::~Json() = default;

Json Json::array(std::initializer_list<Json> items) { return Json(Value(Boxed(Array(items)))); }
Json Json::object() { return Json(Value(Boxed(Object()))); }

bool Json::is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
bool Json::is_boolean() const { return std::holds_alternative<bool>(value_); }
bool Json::is_number() const { return is_whole() || std::holds_alternative<double>(value_); }
bool Json::is_whole() const {
    return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_);
}
bool Json::is_text() const { return content<std::string>(*this); }
bool Json::is_array() const { return content<Array>(*this); }
bool Json::is_object() const { return content<Object>(*this); }

size_t Json::size() const { return is_array() ? items().size() : members().size(); }

const Json::Array& Json::items() const& {
    static const Array none;
    const Array* array = content<Array>(*this);
    return array ? *array : none;
}

Json::Array& Json::items() & {
    CHECK_USAGE(is_array(), "{} is not an array", shown(*this));
    return *std::get<Boxed<Array>>(value_);
}

Json& Json::push_back(Json item) { return items().emplace_back(std::move(item)); }

const Json::Object& Json::members() const& {
    static const Object none;
    const Object* object = content<Object>(*this);
    return object ? *object : none;
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
    if (is_null()) value_ = object().value_;
    CHECK_USAGE(is_object(), "{} is not an object", shown(*this));
    Object& object = *std::get<Boxed<Object>>(value_);
    const auto [member, is_new] = object.try_emplace(std::string(key));
    if (is_new) member->second.position_ = static_cast<int>(object.size());
    return member->second;
}

void Json::erase(std::string_view key) {
    if (is_object()) std::erase_if(*std::get<Boxed<Object>>(value_), [&](auto& member) { return member.first == key; });
}

void Json::update(const Json& object) {
    for (const auto* member : object.members_in_order()) (*this)[member->first] = member->second;
}

bool operator==(const Json& a, const Json& b) {
    return std::visit(
        []<typename A, typename B>(const A& x, const B& y) {
            if constexpr (std::is_integral_v<A> && std::is_integral_v<B> && kIsNumber<A> && kIsNumber<B>)
                return std::cmp_equal(x, y);
            else if constexpr (kIsNumber<A> && kIsNumber<B>)
                return static_cast<double>(x) == static_cast<double>(y);
            else if constexpr (!std::is_same_v<A, B>)
                return false;
            else if constexpr (std::is_same_v<A, std::nullptr_t>)
                return true;
            else if constexpr (std::is_same_v<A, bool>)
                return x == y;
            else
                return *x == *y;
        },
        a.value_, b.value_);
}

Json read_json(const std::string& path, const JsonLimits& limits) {
    return parse_json(read_text(path, limits.bytes), path, limits);
}

template <typename T>
T json_value(const Json& value, const std::string& where) {
    const auto expect = [&](bool ok, const char* what) {
        CHECK_USAGE(ok, "{} is {}, expected {}", where, shown(value), what);
    };
    if constexpr (std::is_same_v<T, Json>) {
        return value;
    } else if constexpr (std::is_same_v<T, bool>) {
        expect(value.is_boolean(), "true or false");
        return std::get<bool>(value.kind());
    } else if constexpr (std::is_same_v<T, std::string>) {
        expect(value.is_text(), "a text");
        return *content<std::string>(value);
    } else {
        expect(std::is_integral_v<T> ? value.is_whole() : value.is_number(),
               std::is_integral_v<T> ? "a whole number" : "a number");
        const auto converted = [&]<typename N>(N number) {
            if constexpr (std::is_integral_v<T> && std::is_integral_v<N>)
                expect(std::in_range<T>(number), "a smaller number");
            else
                expect(std::abs(static_cast<double>(number)) <= static_cast<double>(std::numeric_limits<T>::max()),
                       "a smaller number");
            return static_cast<T>(number);
        };
        if (const auto* number = std::get_if<int64_t>(&value.kind())) return converted(*number);
        if (const auto* number = std::get_if<uint64_t>(&value.kind())) return converted(*number);
        return converted(std::get<double>(value.kind()));
    }
}

template <typename T>
T Json::get() const {
    return json_value<T>(*this, "a value in JSON");
}

#define INSTANTIATE(T)                                         \
    template T json_value<T>(const Json&, const std::string&); \
    template T Json::get<T>() const
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
