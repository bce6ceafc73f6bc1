#include "options/option_table.h"

#include <fmt/core.h>
#include <algorithm>

#include <charconv>
#include <cmath>

#include "base/text.h"
#include "files/json.h"

namespace teon {

std::optional<double> parse_number(std::string_view text) {
    double factor = 1;
    for (auto [suffix, value] : {std::pair{"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}})
        if (text.ends_with(suffix)) {
            factor = value;
            text.remove_suffix(2);
        }
    std::string digits(text);
    for (auto [suffix, exponent] : {std::pair{'k', "e3"}, {'K', "e3"}, {'M', "e6"}, {'G', "e9"}, {'B', "e9"}})
        if (factor == 1 && text.ends_with(suffix)) digits.replace(text.size() - 1, 1, exponent);  // 4.1M is exact
    double value = 0;
    const char* const last = digits.data() + digits.size();
    auto [end, error] = std::from_chars(digits.data(), last, value);
    value *= factor;
    if (error != std::errc() || end != last || !std::isfinite(value)) return std::nullopt;
    return value;
}

std::optional<double> parse_duration(std::string_view text) {
    struct Unit {
        char name;
        double seconds;
    };
    double total = 0;
    double last = INFINITY;
    do {
        int64_t count = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
        if (error != std::errc() || count < 0) return std::nullopt;
        text.remove_prefix(static_cast<size_t>(end - text.data()));
        double seconds = text.empty() && total == 0 && std::isinf(last) ? 1 : 0;  // a number alone
        for (const Unit& unit : {Unit{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}})
            if (!text.empty() && text[0] == unit.name) seconds = unit.seconds;
        if (seconds == 0 || seconds >= last) return std::nullopt;
        if (!text.empty()) text.remove_prefix(1);
        last = seconds;
        total += static_cast<double>(count) * seconds;
    } while (!text.empty());
    return total;
}

const OptionRow* OptionTable::find(std::string_view flag) const {
    const auto row = std::ranges::find(rows, flag, &OptionRow::flag);
    return row == rows.end() ? nullptr : &*row;
}

const OptionRow& OptionTable::row(std::string_view flag) const {
    const OptionRow* const row = find(flag);
    CHECK(row, "there is no flag {}", flag);
    return *row;
}

OptionRow& OptionTable::add(std::string_view flag, std::string_view type, std::string_view help,
                            std::string_view default_text, std::function<void(const std::string&)> set,
                            std::function<Json()> get) {
    OptionRow& row = rows.emplace_back();
    row.group = group_;
    row.flag = flag;
    row.type = type;
    row.help = help;
    row.default_text = default_text;
    row.set = std::move(set);
    row.get = std::move(get);
    row.fixed = fixed_;
    row.methods = methods_;
    return row;
}

OptionRow& OptionTable::quantity(std::string_view flag, std::string_view type, double lo, double hi,
                                 std::string_view help, std::function<void(double)> set, std::function<Json()> get) {
    const Json value = get();
    return add(
        flag, type, help, value.is_null() ? "" : fmt::format("{}", value.number()),
        [=, flag = std::string(flag), is_whole = type == "N"](const std::string& text) {
            const std::optional<double> number = parse_number(text);
            CHECK_USAGE(number && (!is_whole || *number == std::floor(*number)), "{} {}: not a {}", flag, text,
                        is_whole ? "whole number (write 524288, 5e5, 100M or 512Ki)" : "number");
            CHECK_USAGE(*number >= lo && *number <= hi, "{} {}: must be between {} and {}", flag, text, lo, hi);
            set(*number);
        },
        get);
}

OptionRow& OptionTable::text(std::string_view flag, std::string& field, std::string_view type, std::string_view help) {
    return add(
        flag, type, help, field,
        [flag = std::string(flag), &field](const std::string& text) {
            CHECK_USAGE(!text.empty(), "{}: needs a value", flag);
            field = text;
        },
        [&field] { return Json(field); });
}

OptionRow& OptionTable::toggle(std::string_view flag, bool& field, std::string_view help) {
    OptionRow& row = add(
        flag, "on|off", help, field ? "on" : "off",
        [flag = std::string(flag), &field](const std::string& text) {
            const std::string word = lower_case(text);
            CHECK_USAGE(word == "on" || word == "off" || word == "true" || word == "false", "{} {}: must be on or off",
                        flag, text);
            field = word == "on" || word == "true";
        },
        [&field] { return Json(field); });
    row.is_switch = true;
    return row;
}

OptionRow& OptionTable::duration(std::string_view flag, double& field, std::string_view help) {
    return add(
        flag, "TIME", help, "",
        [flag = std::string(flag), &field](const std::string& text) {
            const std::optional<double> value = parse_duration(text);
            CHECK_USAGE(value && *value > 0, "{} {}: not a duration (write 3600, 45m or 23h50m)", flag, text);
            field = *value;
        },
        [&field] { return Json(field); });
}

OptionRow& OptionTable::range(std::string_view flag, std::pair<int64_t, int64_t>& field, std::string_view help) {
    return add(
        flag, "FIRST:LAST", help, "none",
        [flag = std::string(flag), &field](const std::string& text) {
            const size_t colon = text.find(':');
            const double first = parse_number(text.substr(0, colon)).value_or(0);
            const double last = colon < text.size() ? parse_number(text.substr(colon + 1)).value_or(0) : 0;
            CHECK_USAGE(
                first == std::floor(first) && last == std::floor(last) && 1 <= first && first <= last && last <= 1e15,
                "{} {}: not a range (write 10:12)", flag, text);
            field = {static_cast<int64_t>(first), static_cast<int64_t>(last)};
        },
        [&field] { return Json(field.first > 0 ? fmt::format("{}:{}", field.first, field.second) : ""); });
}

OptionRow& OptionTable::choice_row(std::string_view flag, const std::vector<std::string>& names, std::string_view help,
                                   std::function<void(size_t)> set, std::function<size_t()> get) {
    return add(
        flag, joined(names, "|"), help, get() < names.size() ? names[get()] : "",
        [=, flag = std::string(flag)](const std::string& text) {
            for (size_t i = 0; i < names.size(); ++i)
                if (lower_case(names[i]) == lower_case(text)) return set(i);
            throw UsageError(fmt::format("{} {}: must be one of {}", flag, text, joined(names, ", ")));
        },
        [=] { return get() < names.size() ? Json(names[get()]) : Json(); });
}

OptionRow& OptionTable::name(std::string_view flag, std::string& field, const std::vector<std::string>& names,
                             std::string_view help) {
    Choices<std::string> choices;
    for (const std::string& name : names) choices.emplace_back(name, name);
    return choice(flag, field, choices, help);
}

}  // namespace teon
