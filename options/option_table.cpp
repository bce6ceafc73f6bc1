#include "options/option_table.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include <CLI/CLI.hpp>

#include "options/version.h"

namespace teon {

// A finite decimal number: 5, 1e9, 0.02, or with a binary suffix: 512Ki, 2Mi, 1Gi.
std::optional<double> parse_number(std::string_view text) {
    double factor = 1;
    for (auto [suffix, value] : {std::pair{"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}})
        if (text.ends_with(suffix)) {
            factor = value;
            text.remove_suffix(2);
        }
    double value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
    return value * factor;
}

std::optional<double> parse_duration(std::string_view text) {
    struct Unit {
        char name;
        double seconds;
    };
    double total = 0, last = INFINITY;
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

double as_written(float x) { return std::stod(fmt::format("{}", x)); }

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t comma; (comma = text.find(',', begin)) != std::string::npos; begin = comma + 1)
        parts.push_back(text.substr(begin, comma - begin));
    parts.push_back(text.substr(begin));
    return parts;
}

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
            diagonal = std::exchange(row[j], next);
        }
    }
    return row.back();
}

[[noreturn]] void reject_unknown(const OptionTable& table, const std::string& word) {
    std::string flag = word.substr(0, word.find('='));
    CHECK_USAGE(flag.starts_with("-"), "'{}': not expected here; flags begin with --", word);
    const OptionRow* nearest = &table.rows.front();
    for (const OptionRow& row : table.rows)
        if (edit_distance(flag, row.flag) < edit_distance(flag, nearest->flag)) nearest = &row;
    throw UsageError(fmt::format("{}: no such flag; did you mean {}? (--help lists all)", flag, nearest->flag));
}

}  // namespace

std::optional<std::set<std::string>> parse_flags(const OptionTable& table, const std::string& program,
                                                 const std::string& description, int argc, const char* const* argv) {
    CLI::App app(description, program);
    app.get_formatter()->column_width(34);
    app.set_help_flag("--help", "print this and exit")->group("Checks");
    app.set_version_flag("--version", std::string(source_version()), "print the source version and exit")
        ->group("Checks");
    app.set_config("--config", "", "TOML file with the same names; flags override it")->group("Run");
    app.allow_config_extras(CLI::config_extras_mode::error);
    app.allow_extras();

    std::vector<std::vector<std::string>> values(table.rows.size());
    std::vector<CLI::Option*> handles;
    for (size_t i = 0; i < table.rows.size(); ++i) {
        const OptionRow& row = table.rows[i];
        std::string help = row.default_text.empty() ? row.help : fmt::format("{} ({})", row.help, row.default_text);
        CLI::Option* handle = app.add_option(row.flag, values[i], help)->group(row.group)->type_name(row.type);
        handle->expected(row.is_switch ? 0 : 1, row.is_list ? CLI::detail::expected_max_vector_size : 1);
        handle->allow_extra_args(row.is_list);
        // One for all, so that a flag that is given twice is found below and named there.
        handle->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
        handles.push_back(handle);
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        fmt::print("{}", app.help());
        return std::nullopt;
    } catch (const CLI::CallForVersion&) {
        fmt::print("{}\n", source_version());
        return std::nullopt;
    } catch (const CLI::ParseError& error) {
        std::string message = error.what();
        std::replace(message.begin(), message.end(), '\n', ' ');
        throw UsageError(message);
    }
    for (const std::string& word : app.remaining()) reject_unknown(table, word);

    std::set<std::string> given;
    for (size_t i = 0; i < table.rows.size(); ++i) {
        if (handles[i]->count() == 0) continue;
        CHECK_USAGE(table.rows[i].is_list || values[i].size() <= 1, "{}: given {} times ({}); give it once",
                    table.rows[i].flag, values[i].size(), fmt::join(values[i], ", "));
        given.insert(table.rows[i].flag);
        table.rows[i].set(fmt::format("{}", fmt::join(values[i], ",")));
    }
    return given;
}

}  // namespace teon
