// A program's command line, read by its table of options. --help, --version, --config and --completion are here.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "options/option_table.h"

namespace teon {

// Where the values of the rows come from; the others have their defaults.
struct FlagsGiven {
    std::set<std::string> by_user;  // on the command line or in a TOML file
    std::set<std::string> by_run;   // taken over from another run's config.json
    bool count(const std::string& flag) const { return by_user.count(flag) > 0; }
};

// Sets the rows from argv and --config, whose values flags override. Throws UsageError with one line that names the
// flag, the value and the fix. std::nullopt: --help, --version or --completion was asked for and printed.
std::optional<FlagsGiven> parse_flags(const OptionTable& table, const std::string& program,
                                      const std::string& description, int argc, const char* const* argv);

// What --help prints, and --completion bash.
std::string help_text(const OptionTable& table, const std::string& program, const std::string& description);
std::string bash_completion(const OptionTable& table, const std::string& program);

// The flag of the table that is spelled most like the word.
std::string nearest_flag(const OptionTable& table, std::string_view word);

// "PROGRAM: error: MESSAGE" and a line end, for standard error: one line, whatever a file's name or a value contains.
std::string error_line(std::string_view program, std::string_view message);

}  // namespace teon
