#include "files/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "files/file.h"

namespace teon {

namespace {

using nlohmann::json;

// Builds the value from the parser's events. Each takes constant time (a key: logarithmic in its object's size). The
// parser itself keeps one bit per open bracket and does not recurse.
class Builder : public nlohmann::json_sax<json> {
public:
    explicit Builder(const JsonLimits& limits) : limits_(limits) {}

    json root;
    std::string fault;    // why the parse ended early
    size_t position = 0;  // bytes read when it ended; 0: not a syntax error

    bool null() override { return put(nullptr); }
    bool boolean(bool value) override { return put(value); }
    bool number_integer(number_integer_t value) override { return put(value); }
    bool number_unsigned(number_unsigned_t value) override { return put(value); }
    bool number_float(number_float_t value, const string_t&) override { return put(value); }
    bool string(string_t& value) override { return put(std::move(value)); }
    bool binary(binary_t&) override { return false; }  // not in text
    bool start_object(size_t) override { return open(json::object()); }
    bool start_array(size_t) override { return open(json::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(string_t& name) override {
        auto [place, fresh] = open_.back()->get_ref<json::object_t&>().emplace(std::move(name), nullptr);
        member_ = &place->second;
        if (!fresh) fault = fmt::format("{} occurs twice in one object", shown(place->first));
        return fresh;
    }
    bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& error) override {
        const std::string what = error.what();  // "... while parsing value - REASON; last read: '...'"
        const size_t dash = what.find(" - ");
        fault = dash == std::string::npos ? "a number is out of range" : what.substr(dash + 3);
        fault.resize(std::min(fault.find("; last read"), fault.size()));
        position = std::max<size_t>(at, 1);
        return false;
    }

private:
    json* place(json value) {
        if (open_.empty()) return &(root = std::move(value));
        if (json* member = std::exchange(member_, nullptr)) return &(*member = std::move(value));
        json::array_t& array = open_.back()->get_ref<json::array_t&>();
        array.push_back(std::move(value));
        return &array.back();
    }
    bool put(json value) {
        if (++values_ > limits_.values) fault = fmt::format("more than {} values", limits_.values);
        place(std::move(value));
        return fault.empty();
    }
    bool open(json container) {
        if (static_cast<int>(open_.size()) == limits_.depth)
            fault = fmt::format("more than {} nested brackets", limits_.depth);
        if (++values_ > limits_.values) fault = fmt::format("more than {} values", limits_.values);
        open_.push_back(place(std::move(container)));
        return fault.empty();
    }
    bool close() {
        open_.pop_back();
        return true;
    }

    const JsonLimits& limits_;
    std::vector<json*> open_;  // the containers around the next value
    json* member_ = nullptr;   // its place, if it is a member of an object
    int64_t values_ = 0;
};

}  // namespace

json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits) {
    CHECK_USAGE(static_cast<int64_t>(text.size()) <= limits.bytes,
                "{}: {} bytes, more than the {} that such JSON may have", name, text.size(), limits.bytes);
    CHECK_USAGE(text.find_first_not_of(" \t\r\n") != std::string_view::npos, "{}: is empty, expected a JSON object",
                name);
    Builder builder(limits);
    if (!json::sax_parse(text, &builder)) {
        CHECK_USAGE(builder.position > 0, "{}: {}", name, builder.fault);
        const std::string_view before = text.substr(0, builder.position - 1);
        const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 = 0
        throw UsageError(fmt::format("{}: not valid JSON: line {}, column {}: {}", name,
                                     std::count(before.begin(), before.end(), '\n') + 1, before.size() - line_begin + 1,
                                     builder.fault));
    }
    CHECK_USAGE(builder.root.is_object(), "{}: not a JSON object", name);
    return std::move(builder.root);
}

json read_json(const std::string& path, const JsonLimits& limits) {
    return parse_json(read_text(path, limits.bytes), path, limits);
}

std::string shown(const json& value) {
    constexpr size_t kMost = 60;
    if (value.is_structured() && value.size() > kMost)
        return fmt::format("{} of {} values", value.is_object() ? "an object" : "an array", value.size());
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

bool is_utf8(std::string_view text) {
    try {
        json(text).dump();  // throws unless it is UTF-8
        return true;
    } catch (const json::type_error&) { return false; }
}

template <typename T>
T json_value(const json& value, const std::string& where) {
    const auto expect = [&](bool ok, const char* what) {
        CHECK_USAGE(ok, "{} is {}, expected {}", where, shown(value), what);
    };
    if constexpr (std::is_same_v<T, json>) {
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

#define INSTANTIATE(T) template T json_value<T>(const json&, const std::string&)
INSTANTIATE(json);
INSTANTIATE(bool);
INSTANTIATE(int);
INSTANTIATE(unsigned);
INSTANTIATE(int64_t);
INSTANTIATE(uint64_t);
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(std::string);
#undef INSTANTIATE

JsonObject::JsonObject(const json& object, std::string name) : object_(object), name_(std::move(name)) {
    CHECK_USAGE(object.is_object(), "{} is {}, expected an object", name_, shown(object));
}

bool JsonObject::has_key(const std::string& key) const { return object_.contains(key); }

bool JsonObject::has(const std::string& key) const { return object_.contains(key) && !object_[key].is_null(); }

const json& JsonObject::member(const std::string& key) const {
    CHECK_USAGE(object_.contains(key), "{}: {} is missing", name_, key);
    return object_[key];
}

}  // namespace teon
