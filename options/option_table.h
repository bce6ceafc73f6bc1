// This folder defines, parses, suggests, completes and writes all flags. A program's flags are a table: one row per
// flag, from which help, checks, completion, config files and the log follow. To add a flag, open flags.cpp (for the
// optimizer's optimizer_flags.cpp, for generate's sampling_options.cpp), and options.h for the value that it sets.
#pragma once

#include <functional>
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

struct MethodInfo;  // an optimizer (optim/methods.h)

// Another flag without which a flag has no meaning.
struct Need {
    std::string flag;
    std::vector<std::string> values;  // one of these; none: any but off, 0 or nothing
    std::string remark;               // more to say to one who lacks it
};

struct OptionRow {
    std::string group, flag, type, help, default_text;
    std::function<void(const std::string&)> set;  // throws UsageError
    std::function<Json()> get;
    std::function<void()> follow;  // sets a default that follows from the values of rows above; empty: it is constant
    std::vector<Need> needs;       // one of these must be met if the flag is given
    bool is_switch = false;
    bool is_list = false;    // several words may follow the flag; they become one with commas
    bool fixed = true;       // a resumed run must have the value that it began with
    bool this_call = false;  // applies to this call, not to the run: never taken from a run's config.json
    bool logged = true;      // in a run's config.json
    bool (*methods)(const MethodInfo&) = nullptr;  // whether an optimizer has the flag; nullptr: all have

    OptionRow& of(bool (*which)(const MethodInfo&)) {
        methods = which;
        return *this;
    }
    OptionRow& need(std::string other, std::vector<std::string> values = {}, std::string remark = "") {
        needs.push_back({std::move(other), std::move(values), std::move(remark)});
        return *this;
    }
    OptionRow& follows(std::function<void()> set_default) {
        follow = std::move(set_default);
        return *this;
    }
};

// The names of a field's values.
template <typename F>
using Choices = std::vector<std::pair<std::string, F>>;

class OptionTable {
public:
    std::vector<OptionRow> rows;

    const OptionRow* find(std::string_view flag) const;  // nullptr: there is none
    const OptionRow& row(std::string_view flag) const;   // there must be one

    // Sets the group of the rows that follow, and their defaults for `fixed` and `methods`.
    void group(std::string name, bool fixed = true, bool (*methods)(const MethodInfo&) = nullptr) {
        group_ = std::move(name);
        fixed_ = fixed;
        methods_ = methods;
    }

    // An integer in [lo, hi].
    template <typename I>
    OptionRow& integer(std::string_view flag, I& field, int64_t lo, int64_t hi, std::string_view help) {
        return quantity(
            flag, "N", static_cast<double>(lo), static_cast<double>(hi), help,
            [&field](double value) { field = static_cast<I>(value); },
            [&field] { return Json(static_cast<int64_t>(field)); });
    }
    // A number in [lo, hi]; the field may be optional.
    template <typename F>
    OptionRow& number(std::string_view flag, F& field, double lo, double hi, std::string_view help) {
        using Number = std::remove_cvref_t<decltype(std::optional(field).value())>;
        return quantity(
            flag, "X", lo, hi, help, [&field](double value) { field = static_cast<Number>(value); },
            [&field] {
                const std::optional<Number> value = field;
                return value ? Json(as_written(*value)) : Json();
            });
    }
    OptionRow& text(std::string_view flag, std::string& field, std::string_view type, std::string_view help);
    OptionRow& toggle(std::string_view flag, bool& field, std::string_view help);
    // Seconds, written 3600, 90s, 45m, 23h50m or 1d12h.
    OptionRow& duration(std::string_view flag, double& field, std::string_view help);
    // Two whole numbers FIRST:LAST, 1 <= FIRST <= LAST; {0, 0}: none.
    OptionRow& range(std::string_view flag, std::pair<int64_t, int64_t>& field, std::string_view help);
    // One of a few names, in upper or lower case. No two names may differ in case alone.
    OptionRow& name(std::string_view flag, std::string& field, const std::vector<std::string>& names,
                    std::string_view help);
    // One of a few values by name: those given, those of an enum with these values (base/enum_names.h), or all of it.
    template <typename F>
    OptionRow& choice(std::string_view flag, F& field, const Choices<std::type_identity_t<F>>& choices,
                      std::string_view help) {
        std::vector<std::string> names;
        for (const auto& [name, value] : choices) names.push_back(name);
        return choice_row(
            flag, names, help, [&field, choices](size_t i) { field = choices[i].second; },
            [&field, choices] {
                size_t i = 0;
                while (i < choices.size() && choices[i].second != field) ++i;
                return i;
            });
    }
    template <typename E>
    OptionRow& choice(std::string_view flag, E& field, const std::vector<E>& values, std::string_view help) {
        Choices<E> choices;
        for (const E value : values) choices.emplace_back(name_of(value), value);
        return choice(flag, field, choices, help);
    }
    template <typename E>
    OptionRow& choice(std::string_view flag, E& field, std::string_view help) {
        Choices<E> choices;
        for (const auto& [value, name] : kEnumNames<E>) choices.emplace_back(name, value);
        return choice(flag, field, choices, help);
    }
    // "auto", an empty optional, or one of an enum's names.
    template <typename E>
    OptionRow& choice(std::string_view flag, std::optional<E>& field, std::string_view help) {
        Choices<std::optional<E>> choices = {{"auto", std::nullopt}};
        for (const auto& [value, name] : kEnumNames<E>) choices.emplace_back(name, value);
        return choice(flag, field, choices, help);
    }
    OptionRow& add(std::string_view flag, std::string_view type, std::string_view help, std::string_view default_text,
                   std::function<void(const std::string&)> set, std::function<Json()> get);

private:
    OptionRow& quantity(std::string_view flag, std::string_view type, double lo, double hi, std::string_view help,
                        std::function<void(double)> set, std::function<Json()> get);
    // get: the index of the value's name, or names.size() if it has none.
    OptionRow& choice_row(std::string_view flag, const std::vector<std::string>& names, std::string_view help,
                          std::function<void(size_t)> set, std::function<size_t()> get);

    std::string group_;
    bool fixed_ = true;
    bool (*methods_)(const MethodInfo&) = nullptr;
};

// The flags that a user chose; the others have their defaults.
struct FlagsGiven {
    std::set<std::string> by_user;  // on the command line or in a TOML file
    std::set<std::string> by_like;  // by --like
    std::set<std::string> by_run;   // when the run began whose config.json was read
    std::string run_config;         // that file, if --config names one
};

}  // namespace teon
