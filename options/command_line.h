// Parses a program's command line by its table of options. Implements --help, --help-all, --version, --config and
// --completion.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "options/option_table.h"

namespace teon {

// The text of a program's --help, besides its flags.
struct ProgramText {
    std::string name, description;
    std::vector<std::string> examples;   // commands; two blanks and a # begin a remark
    std::vector<std::string> most_used;  // the flags that --help shows, in this order; --help-all shows every flag
};

// Sets the rows from argv and from the file of --config, whose values flags override. Throws UsageError with one line
// that names the flag, the value and the fix. Returns nullopt if --help, --help-all, --version or --completion was
// given; prints its text.
std::optional<FlagsGiven> parse_flags(const OptionTable& table, const ProgramText& program, int argc,
                                      const char* const* argv);

// Returns "PROGRAM: error: MESSAGE" and a newline, for standard error. It is one line of at most some 2,000 bytes,
// whatever a file name or value in the message contains.
std::string error_line(std::string_view program, std::string_view message);

// Returns the error's message. It says what could not be done where the library's text is only "Resource temporarily
// unavailable".
std::string message_of(const std::exception& error);

}  // namespace teon
