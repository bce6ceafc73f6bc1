// A program's flags as a table: one row per flag generates parsing, help, completion, range checks, the keys of the
// config file and the resolved values that are logged (options/command_line.h, options/config_file.h).
#pragma once

#include <fmt/ranges.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/enum_names.h"
#include "base/text.h"
#include "files/json.h"

namespace teon {

// A finite decimal number: 5, 1e9, 0.02; with a suffix: 100k, 0.5M, 40G (or 40B), 512Ki, 2Mi, 1Gi.
std::optional<double> parse_number(std::string_view text);

// The seconds in 3600, 90s, 45m, 23h50m or 1d12h: whole numbers, units from large to small, each at most once.
std::optional<double> parse_duration(std::string_view text);

struct OptionRow {
    std::string group, flag, type, help, default_text;
    std::function<void(const std::string&)> set;  // throws UsageError
    std::function<nlohmann::json()> get;
    bool is_switch = false;
    bool is_list = false;    // several words may follow the flag; they become one with commas
    bool fixed = true;       // a resumed run must have the value that it began with
    bool this_call = false;  // applies to this call, not to the run: never taken from a run's config.json
    bool logged = true;      // in a run's config.json
};

template <typename E>
using Choices = std::vector<std::pair<std::string, E>>;

class OptionTable {
public:
    std::vector<OptionRow> rows;

    // Sets the group of the rows that follow, and their default for `fixed`.
    void group(std::string name, bool fixed = true) {
        group_ = std::move(name);
        fixed_ = fixed;
    }

    // An integer in [lo, hi].
    template <typename I>
    OptionRow& integer(std::string flag, I& field, int64_t lo, int64_t hi, std::string help) {
        return add(
            flag, "N", help, fmt::format("{}", field),
            [=, &field](const std::string& text) {
                auto value = parse_number(text);
                CHECK_USAGE(value && *value == std::floor(*value),
                            "{} {}: not a whole number (write 524288, 5e5, 100M or 512Ki)", flag, text);
                CHECK_USAGE(*value >= static_cast<double>(lo) && *value <= static_cast<double>(hi),
                            "{} {}: must be between {} and {}", flag, text, lo, hi);
                field = static_cast<I>(*value);
            },
            [&field] { return nlohmann::json(field); });
    }
    // A number in [lo, hi]; the field may be optional.
    template <typename F>
    OptionRow& number(std::string flag, F& field, double lo, double hi, std::string help) {
        std::string initial;
        if constexpr (std::is_arithmetic_v<F>) initial = fmt::format("{}", field);
        return add(
            flag, "X", help, initial,
            [=, &field](const std::string& text) {
                auto value = parse_number(text);
                CHECK_USAGE(value, "{} {}: not a number", flag, text);
                CHECK_USAGE(*value >= lo && *value <= hi, "{} {}: must be between {} and {}", flag, text, lo, hi);
                if constexpr (std::is_arithmetic_v<F>)
                    field = static_cast<F>(*value);
                else
                    field = static_cast<typename F::value_type>(*value);
            },
            [&field] {
                if constexpr (std::is_arithmetic_v<F>)
                    return nlohmann::json(as_written(field));
                else
                    return field ? nlohmann::json(as_written(*field)) : nlohmann::json();
            });
    }
    OptionRow& text(std::string flag, std::string& field, std::string type, std::string help) {
        return add(
            flag, type, help, field,
            [=, &field](const std::string& text) {
                CHECK_USAGE(!text.empty(), "{}: needs a value", flag);
                field = text;
            },
            [&field] { return nlohmann::json(field); });
    }
    OptionRow& toggle(std::string flag, bool& field, std::string help) {
        OptionRow& row = add(
            flag, "on|off", help, field ? "on" : "off",
            [=, &field](const std::string& text) {
                const std::string word = lower_case(text);
                CHECK_USAGE(word == "on" || word == "off" || word == "true" || word == "false",
                            "{} {}: must be on or off", flag, text);
                field = word == "on" || word == "true";
            },
            [&field] { return nlohmann::json(field); });
        row.is_switch = true;
        return row;
    }
    // Seconds, written 3600, 90s, 45m, 23h50m or 1d12h.
    OptionRow& duration(std::string flag, double& field, std::string help) {
        return add(
            flag, "TIME", help, "",
            [=, &field](const std::string& text) {
                auto value = parse_duration(text);
                CHECK_USAGE(value && *value > 0, "{} {}: not a duration (write 3600, 45m or 23h50m)", flag, text);
                field = *value;
            },
            [&field] { return nlohmann::json(field); });
    }
    // Two whole numbers FIRST:LAST, 1 <= FIRST <= LAST; {0, 0}: none.
    OptionRow& range(std::string flag, std::pair<int64_t, int64_t>& field, std::string help) {
        return add(
            flag, "FIRST:LAST", help, "none",
            [=, &field](const std::string& text) {
                const size_t colon = text.find(':');
                const double first = parse_number(text.substr(0, colon)).value_or(0);
                const double last = colon < text.size() ? parse_number(text.substr(colon + 1)).value_or(0) : 0;
                CHECK_USAGE(first == std::floor(first) && last == std::floor(last) && 1 <= first && first <= last &&
                                last <= 1e15,
                            "{} {}: not a range (write 10:12)", flag, text);
                field = {static_cast<int64_t>(first), static_cast<int64_t>(last)};
            },
            [&field] {
                return nlohmann::json(field.first > 0 ? fmt::format("{}:{}", field.first, field.second) : "");
            });
    }
    // One of a few names, in upper or lower case; the field may be optional. No two names may differ in case alone.
    template <typename F, typename E>
    OptionRow& choice(std::string flag, F& field, Choices<E> choices, std::string help) {
        auto name = [choices](E value) {
            for (auto& [text, e] : choices)
                if (e == value) return text;
            return std::string();
        };
        std::string initial;
        if constexpr (std::is_same_v<F, E>) initial = name(field);
        std::vector<std::string> names;
        for (auto& [text, e] : choices) names.push_back(text);
        return add(
            flag, fmt::format("{}", fmt::join(names, "|")), help, initial,
            [=, &field](const std::string& text) {
                for (auto& [candidate, e] : choices)
                    if (lower_case(candidate) == lower_case(text)) {
                        field = e;
                        return;
                    }
                throw UsageError(fmt::format("{} {}: must be one of {}", flag, text, fmt::join(names, ", ")));
            },
            [&field, name] {
                if constexpr (std::is_same_v<F, E>)
                    return nlohmann::json(name(field));
                else
                    return field ? nlohmann::json(name(*field)) : nlohmann::json();
            });
    }
    // One of an enum's names (base/enum_names.h): the names of `values`, or all.
    template <typename F, typename E>
    OptionRow& choice(std::string flag, F& field, const std::vector<E>& values, std::string help) {
        Choices<E> choices;
        for (E value : values) choices.push_back({std::string(name_of(value)), value});
        return choice(std::move(flag), field, std::move(choices), std::move(help));
    }
    template <typename E>
    OptionRow& choice(std::string flag, E& field, std::string help) {
        std::vector<E> all;
        for (const EnumName<E>& row : kEnumNames<E>) all.push_back(row.value);
        return choice(std::move(flag), field, all, std::move(help));
    }
    OptionRow& add(std::string flag, std::string type, std::string help, std::string default_text,
                   std::function<void(const std::string&)> set, std::function<nlohmann::json()> get) {
        rows.push_back({group_, std::move(flag), std::move(type), std::move(help), std::move(default_text),
                        std::move(set), std::move(get)});
        rows.back().fixed = fixed_;
        return rows.back();
    }

private:
    std::string group_;
    bool fixed_ = true;
};

// The flags that were set; the others have their defaults.
struct FlagsGiven {
    std::set<std::string> by_user;                 // on the command line or in a TOML file
    std::map<std::string, nlohmann::json> by_run;  // values in another run's config.json, also of flags in by_user
    bool count(const std::string& flag) const { return by_user.count(flag) > 0; }
};

}  // namespace teon
