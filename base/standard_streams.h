// Standard output and standard error, which may be closed, full or a pipe without a reader.
#pragma once

#include <string_view>

namespace teon {

// Prepares the process; call it first in main(). Opens a descriptor of 0 to 2 that is closed, so that no file of a run
// gets its number and then the program's messages; writing to it fails as before. Ignores SIGXFSZ: a write beyond the
// limit of `ulimit -f` then fails like one to a full disk, which is reported. Lets a
// failed allocation in host memory throw a std::bad_alloc whose message says so.
void prepare_process();

// Writes the text to standard output and flushes it. Throws Error unless all of it was written.
void print_output(std::string_view text);

// Writes the text to standard error. A failure is ignored, because there is nobody left to tell; the exit status stays.
void print_error(std::string_view text) noexcept;

}  // namespace teon
