// Files of flags: TOML, or the config.json of a run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "options/option_table.h"

namespace teon {

struct ConfigEntry {
    std::string key;  // as a flag, without --
    Json value;
    int line = 0;
};

// Returns the entries of a TOML file (https://toml.io). Supports the part of TOML that flags need: keys with strings
// (escaped as in JSON), decimal numbers, booleans, arrays and inline tables of these; no sections. Takes time linear in
// the length of the text. Throws UsageError that begins with `name` and the line.
std::vector<ConfigEntry> parse_toml(std::string_view text, const std::string& name);

// The functions below throw UsageError naming file, line and key, with suggestion() for an unknown key. A value must
// have its flag's type: "5" is not a number.
//
// Reads the file of --config. Sets the rows that are not in `given` from a TOML file and adds them to `given`. A JSON
// file is not read yet: it is given.run_config.
void read_config(const std::string& path, const OptionTable& table, FlagsGiven& given);

// Sets the rows that the user did not give to the values of a run's config.json, which must be of `program`, and
// given.by_run to the flags that were given when that run began: all, if an older version wrote the file.
void read_run_config(const std::string& path, const OptionTable& table, const std::string& program, FlagsGiven& given);

}  // namespace teon
