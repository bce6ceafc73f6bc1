// Errors. CHECK is always on, also in release builds. Its message is one sentence that says what was expected, what was
// found and what to change. A main function catches Error, prints one line and exits with status 1, or 2 for a
// UsageError.
#pragma once

#include <fmt/core.h>
#if FMT_VERSION < 90000  // whose core.h cannot format a string before format.h
#include <fmt/format.h>
#endif

#include <stdexcept>
#include <string>

namespace teon {

// A failure while running: exit status 1.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Input that can be rejected before anything is allocated: exit status 2.
struct UsageError : Error {
    using Error::Error;
};

}  // namespace teon

// Throws teon::Error with the formatted message unless cond holds.
#define CHECK(cond, ...)                                              \
    do {                                                              \
        if (!(cond)) throw ::teon::Error(::fmt::format(__VA_ARGS__)); \
    } while (0)

// Throws teon::UsageError likewise, for wrong usage (flags, presets, files named on the command line).
#define CHECK_USAGE(cond, ...)                                             \
    do {                                                                   \
        if (!(cond)) throw ::teon::UsageError(::fmt::format(__VA_ARGS__)); \
    } while (0)
