#include <algorithm>
#include <nlohmann/json.hpp>

#include "files/json.h"

namespace teon {

namespace {

// Builds the value from the parser's events. Each takes constant time (a key: logarithmic in its object's size). The
// parser itself keeps one bit per open bracket and does not recurse.
class Builder : public nlohmann::json_sax<nlohmann::json> {
public:
    explicit Builder(const JsonLimits& limits) : limits_(limits) {}

    Json root;
    std::string fault;    // why the parse ended early
    size_t position = 0;  // bytes read when it ended; 0: not a syntax error

    bool null() override { return put(nullptr); }
    bool boolean(bool value) override { return put(value); }
    bool number_integer(number_integer_t value) override { return put(value); }
    bool number_unsigned(number_unsigned_t value) override { return put(value); }
    bool number_float(number_float_t value, const string_t&) override { return put(value); }
    bool string(string_t& value) override { return put(std::move(value)); }
    bool binary(binary_t&) override { return false; }  // not in text
    bool start_object(size_t) override { return open(Json::object()); }
    bool start_array(size_t) override { return open(Json::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(string_t& name) override {
        if (open_.back()->contains(name)) fault = fmt::format("{} occurs twice in one object", shown(name));
        member_ = &(*open_.back())[name];
        return fault.empty();
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
    Json* place(Json value) {
        if (open_.empty()) return &(root = std::move(value));
        if (Json* member = std::exchange(member_, nullptr)) return &(*member = std::move(value));
        return &open_.back()->push_back(std::move(value));
    }
    bool put(Json value) {
        if (++values_ > limits_.values) fault = fmt::format("more than {} values", limits_.values);
        place(std::move(value));
        return fault.empty();
    }
    bool open(Json container) {
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
    std::vector<Json*> open_;  // the containers around the next value
    Json* member_ = nullptr;   // its place, if it is a member of an object
    int64_t values_ = 0;
};

std::string text_of(const nlohmann::json& scalar, const JsonStyle& style) {
    using nlohmann::detail::error_handler_t;
    return scalar.dump(-1, ' ', style.ascii, style.any_bytes ? error_handler_t::replace : error_handler_t::strict);
}

std::string scalar_text(const Json& value, const JsonStyle& style) {
    switch (value.kind()) {
        case Json::Kind::boolean:
            return value.get<bool>() ? "true" : "false";
        case Json::Kind::integer:
            return std::to_string(value.get<int64_t>());
        case Json::Kind::unsigned_integer:
            return std::to_string(value.get<uint64_t>());
        case Json::Kind::real:
            return text_of(value.number(), style);
        case Json::Kind::text:
            return text_of(value.get<std::string>(), style);
        default:
            return "null";
    }
}

void append(std::string& text, const Json& value, const JsonStyle& style, int level) {
    const auto new_line = [&](int of_level) {
        if (style.indent >= 0) text += "\n" + std::string(static_cast<size_t>(of_level * style.indent), ' ');
    };
    auto begin_item = [&, is_first = true]() mutable {
        if (!std::exchange(is_first, false)) text += ',';
        new_line(level + 1);
    };
    if (!value.is_container()) {
        text += scalar_text(value, style);
        return;
    }
    text += value.is_object() ? '{' : '[';
    for (const Json& item : value.items()) {
        begin_item();
        append(text, item, style, level + 1);
    }
    const auto append_member = [&](const Json::Object::value_type& member) {
        begin_item();
        text += text_of(member.first, style) + (style.indent >= 0 ? ": " : ":");
        append(text, member.second, style, level + 1);
    };
    if (style.in_order)
        for (const auto* member : value.members_in_order()) append_member(*member);
    else
        for (const auto& member : value.members()) append_member(member);
    if (value.size() > 0) new_line(level);
    text += value.is_object() ? '}' : ']';
}

}  // namespace

Json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits) {
    CHECK_USAGE(static_cast<int64_t>(text.size()) <= limits.bytes,
                "{}: {} bytes, more than the {} that such JSON may have", name, text.size(), limits.bytes);
    CHECK_USAGE(text.find_first_not_of(" \t\r\n") != std::string_view::npos, "{}: is empty, expected a JSON object",
                name);
    Builder builder(limits);
    if (!nlohmann::json::sax_parse(text, &builder)) {
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

std::string json_text(const Json& value, const JsonStyle& style) {
    std::string text;
    append(text, value, style, 0);
    return text;
}

std::string shown(const Json& value) {
    constexpr size_t kMost = 60;
    if (value.is_container() && value.size() > kMost)
        return fmt::format("{} of {} values", value.is_object() ? "an object" : "an array", value.size());
    const std::string text = json_text(value, {.ascii = true, .any_bytes = true});
    return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

bool is_utf8(std::string_view text) {
    try {
        text_of(text, {});  // throws unless it is UTF-8
        return true;
    } catch (const nlohmann::json::type_error&) { return false; }
}

}  // namespace teon
