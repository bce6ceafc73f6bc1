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

struct MethodInfo;  // an optimizer (optim/methods.h)

struct OptionRow {
    std::string group, flag, type, help, default_text;
    std::function<void(const std::string&)> set;  // throws UsageError
    std::function<Json()> get;
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
};

// The names of a field's values. A value is an enum, a bool or another type that converts to an int and back, or an
// optional of one; -1 stands for an empty optional.
using Choices = std::vector<std::pair<std::string, int>>;

template <typename F>
int code_of(const F& value) {
    if constexpr (requires { value.has_value(); })
        return value ? code_of(*value) : -1;
    else
        return static_cast<int>(value);
}

template <typename F>
void set_code(F& field, int code) {
    if constexpr (requires { field.has_value(); })
        field = code < 0 ? std::nullopt : F(static_cast<typename F::value_type>(code));
    else
        field = static_cast<F>(code);
}

class OptionTable {
public:
    std::vector<OptionRow> rows;

    // Sets the group of the rows that follow, and their defaults for `fixed` and `methods`.
    void group(std::string name, bool fixed = true, bool (*methods)(const MethodInfo&) = nullptr) {
        group_ = std::move(name);
        fixed_ = fixed;
        methods_ = methods;
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
    // One of a few names, in upper or lower case. No two names may differ in case alone.
    OptionRow& name(std::string_view flag, std::string& field, const std::vector<std::string>& names,
                    std::string_view help);
    // One of a few values by name: those given, those of an enum with these values (base/enum_names.h), or all of it.
    template <typename F>
    OptionRow& choice(std::string_view flag, F& field,
                      std::initializer_list<std::pair<const char*, std::type_identity_t<F>>> values,
                      std::string_view help) {
        Choices choices;
        for (const auto& [name, value] : values) choices.emplace_back(name, code_of(value));
        return coded_choice(flag, field, choices, help);
    }
    template <typename E>
    OptionRow& choice(std::string_view flag, E& field, const std::vector<E>& values, std::string_view help) {
        Choices choices;
        for (const E value : values) choices.emplace_back(name_of(value), code_of(value));
        return coded_choice(flag, field, choices, help);
    }
    template <typename E>
    OptionRow& choice(std::string_view flag, E& field, std::string_view help) {
        Choices choices;
        for (const EnumName<E>& row : kEnumNames<E>) choices.emplace_back(row.name, code_of(row.value));
        return coded_choice(flag, field, choices, help);
    }
    // "auto", an empty optional, or one of an enum's names.
    template <typename E>
    OptionRow& choice(std::string_view flag, std::optional<E>& field, std::string_view help) {
        Choices choices = {{"auto", -1}};
        for (const EnumName<E>& row : kEnumNames<E>) choices.emplace_back(row.name, code_of(row.value));
        return coded_choice(flag, field, choices, help);
    }
    OptionRow& add(std::string_view flag, std::string_view type, std::string_view help, std::string_view default_text,
                   std::function<void(const std::string&)> set, std::function<Json()> get);

private:
    OptionRow& integer_row(std::string_view flag, int64_t lo, int64_t hi, std::string_view help,
                           std::function<void(double)> set, std::function<int64_t()> get);
    OptionRow& number_row(std::string_view flag, std::string_view default_text, double lo, double hi,
                          std::string_view help, std::function<void(double)> set,
                          std::function<std::optional<double>()> get);
    template <typename F>
    OptionRow& coded_choice(std::string_view flag, F& field, const Choices& choices, std::string_view help) {
        return choice_row(
            flag, choices, help, [&field](int code) { set_code(field, code); }, [&field] { return code_of(field); });
    }
    OptionRow& choice_row(std::string_view flag, const Choices& choices, std::string_view help,
                          std::function<void(int)> set, std::function<int()> get);

    std::string group_;
    bool fixed_ = true;
    bool (*methods_)(const MethodInfo&) = nullptr;
};

// The flags that were set; the others have their defaults.
struct FlagsGiven {
    std::set<std::string> by_user;       // on the command line or in a TOML file
    std::map<std::string, Json> by_run;  // values in another run's config.json, also of flags in by_user
    bool count(const std::string& flag) const { return by_user.count(flag) > 0; }
};

}  // namespace teon
