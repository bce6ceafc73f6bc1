// Reading and writing the flags (options/options.h): the command line, --config, a resumed run's flags, and
// config.json.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "files/json.h"
#include "options/options.h"

namespace teon {

// Parses argv and the file of --config. With --resume, takes flags that are not given from the config.json in --out.
// Throws UsageError with one line that names the flag, the value and the fix. Returns std::nullopt after --help or
// --version, which it prints. before_resume: called with the given flags before that config.json is opened.
std::optional<Options> parse_options(const ModelFamily& family, int argc, const char* const* argv,
                                     const std::function<void(const Options&)>& before_resume = {});

// Returns every flag with its resolved value, for config.json.
Json options_json(const ModelFamily& family, const Options& options);

// Returns the names of the flags that users gave, now or when the run began; the others had their defaults.
Json given_json(const ModelFamily& family, const Options& options);

// Returns the flags that decide a run's numbers, except --seed and the model's flags, which are described elsewhere.
Json deciding_options(const ModelFamily& family, const Options& options);

// Returns the flags that a resumed run must not change but whose resolved value differs from the saved one:
// "--lr 0.1 (was 0.2)".
std::vector<std::string> changed_options(const ModelFamily& family, const Json& saved, const Options& options);

}  // namespace teon
