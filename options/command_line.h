// A program's command line, read by its table of options. --help, --help-all, --version, --config and --completion are
// here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "options/option_table.h"

namespace teon {

// A program's part of --help beside its flags.
struct ProgramText {
    std::string name, description;
    std::vector<std::string> examples;   // each a command, possibly with a remark behind two blanks and a #
    std::vector<std::string> most_used;  // the flags that --help shows, in this order; --help-all shows every flag
};

// Sets the rows from argv and --config, whose values flags override. Throws UsageError with one line that names the
// flag, the value and the fix. std::nullopt: --help, --help-all, --version or --completion was asked for and printed.
std::optional<FlagsGiven> parse_flags(const OptionTable& table, const ProgramText& program, int argc,
                                      const char* const* argv);

// "PROGRAM: error: MESSAGE" and a line end, for standard error: one line, whatever a file's name or a value contains.
std::string error_line(std::string_view program, std::string_view message);

}  // namespace teon
