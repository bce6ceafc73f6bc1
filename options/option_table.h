// A program's flags as a table: one row per flag generates parsing, help, completion, range checks, the keys of the
// config file and the resolved values that are logged (options/command_line.h, options/config_file.h).
#pragma once

#include <functional>
#include <map>
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
    std::function<Json()> get;
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
    OptionRow& integer(std::string_view flag, I& field, int64_t lo, int64_t hi, std::string_view help) {
        return integer_row(
            flag, lo, hi, help, [&field](double value) { field = static_cast<I>(value); },
            [&field] { return static_cast<int64_t>(field); });
    }
    // A number in [lo, hi]; the field may be optional.
    template <typename F>
    OptionRow& number(std::string_view flag, F& field, double lo, double hi, std::string_view help) {
        if constexpr (std::is_arithmetic_v<F>) {
            return number_row(
                flag, fmt::format("{}", field), lo, hi, help, [&field](double value) { field = static_cast<F>(value); },
                [&field] { return std::optional(as_written(field)); });
        } else {
            return number_row(
                flag, "", lo, hi, help, [&field](double value) { field = static_cast<typename F::value_type>(value); },
                [&field] { return field ? std::optional(as_written(*field)) : std::nullopt; });
        }
    }
    OptionRow& text(std::string_view flag, std::string& field, std::string_view type, std::string_view help);
    OptionRow& toggle(std::string_view flag, bool& field, std::string_view help);
    // Seconds, written 3600, 90s, 45m, 23h50m or 1d12h.
    OptionRow& duration(std::string_view flag, double& field, std::string_view help);
    // Two whole numbers FIRST:LAST, 1 <= FIRST <= LAST; {0, 0}: none.
    OptionRow& range(std::string_view flag, std::pair<int64_t, int64_t>& field, std::string_view help);
    // One of a few names, in upper or lower case; the field may be optional. No two names may differ in case alone.
    template <typename F, typename E>
    OptionRow& choice(std::string_view flag, F& field, Choices<E> choices, std::string_view help) {
        std::vector<std::string> names;
        for (const auto& [name, value] : choices) names.push_back(name);
        const auto name_of_value = [choices](const E& value) {
            for (const auto& [name, candidate] : choices)
                if (candidate == value) return name;
            return std::string();
        };
        return choice_row(
            flag, std::move(names), help, [&field, choices](size_t i) { field = choices[i].second; },
            [&field, name_of_value]() -> std::optional<std::string> {
                if constexpr (std::is_same_v<F, E>)
                    return name_of_value(field);
                else
                    return field ? std::optional(name_of_value(*field)) : std::nullopt;
            });
    }
    // One of an enum's names (base/enum_names.h): the names of `values`, or all.
    template <typename F, typename E>
    OptionRow& choice(std::string_view flag, F& field, const std::vector<E>& values, std::string_view help) {
        Choices<E> choices;
        for (E value : values) choices.push_back({std::string(name_of(value)), value});
        return choice(flag, field, std::move(choices), help);
    }
    template <typename E>
    OptionRow& choice(std::string_view flag, E& field, std::string_view help) {
        std::vector<E> all;
        for (const EnumName<E>& row : kEnumNames<E>) all.push_back(row.value);
        return choice(flag, field, all, help);
    }
    OptionRow& add(std::string_view flag, std::string_view type, std::string_view help, std::string_view default_text,
                   std::function<void(const std::string&)> set, std::function<Json()> get);

private:
    OptionRow& integer_row(std::string_view flag, int64_t lo, int64_t hi, std::string_view help,
                           std::function<void(double)> set, std::function<int64_t()> get);
    OptionRow& number_row(std::string_view flag, std::string_view default_text, double lo, double hi,
                          std::string_view help, std::function<void(double)> set,
                          std::function<std::optional<double>()> get);
    // set: takes the index of a name. get: the name; nullopt if the field is empty.
    OptionRow& choice_row(std::string_view flag, std::vector<std::string> names, std::string_view help,
                          std::function<void(size_t)> set, std::function<std::optional<std::string>()> get);

    std::string group_;
    bool fixed_ = true;
};

// The flags that were set; the others have their defaults.
struct FlagsGiven {
    std::set<std::string> by_user;       // on the command line or in a TOML file
    std::map<std::string, Json> by_run;  // values in another run's config.json, also of flags in by_user
    bool count(const std::string& flag) const { return by_user.count(flag) > 0; }
};

}  // namespace teon
