// The file of --config: a TOML file of flags, or the config.json of another run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "options/option_table.h"

namespace teon {

enum class ValueKind { number, text, boolean, list };  // list: an array or inline table

struct ConfigEntry {
    std::string key;    // as a flag, without --
    std::string value;  // as on the command line, lists with commas
    int line = 0;
    ValueKind kind = ValueKind::text;
};

// Returns the entries of a TOML file (https://toml.io). Supports the part of TOML that flags need: keys with strings,
// decimal numbers, booleans, arrays and inline tables of these; no sections. Takes time linear in the length of the
// text. Throws UsageError that begins with `name` and the line.
std::vector<ConfigEntry> parse_toml(std::string_view text, const std::string& name);

// Sets the rows that are not in `flags` from the file and adds them to `flags`. A JSON file must be the config.json of
// a run of `program`. A value must have its flag's type: "5" is not a number. Throws UsageError naming file, line and
// key, with suggestion() for an unknown key.
void read_config(const std::string& path, const OptionTable& table, const std::string& program, FlagsGiven& flags);

// Sets rows to the values of a run's config.json, FlagsGiven::by_run. Rows with other values have their defaults.
void set_rows(const OptionTable& table, const std::map<std::string, Json>& values);

}  // namespace teon
