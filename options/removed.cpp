#include "options/removed.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace teon {

namespace {

struct Removed {
    std::string_view key;
    std::string_view value;  // what cannot be repeated, as JSON; "": the flag had no effect without another row's value
    std::string_view version;  // the last one that had it
    std::string_view instead;
    bool is_flag = true;  // else only the value was removed
};

constexpr Removed kRemoved[] = {
    {"optimizer", R"("soap")", "0.2.0", "use --optimizer muon or normuon", false},
    {"soap-frequency", "", "0.2.0", ""},
    {"soap-max-dim", "", "0.2.0", ""},
    {"ortho", R"("you6")", "0.2.0", "use --ortho you or polar-express", false},
    {"gelu-fusion", "true", "0.2.0", "leave it out; --init-from takes the weights of such a run"},
    {"autotune", "true", "0.2.0", "leave it out; --init-from takes the weights of such a run"},
    {"algorithms", "", "0.2.0", ""},
    {"verify-data", "", "0.2.0", ""},
    {"ns-aol", "true", "0.2.0", "leave it out: it gained nothing"},
};

}  // namespace

std::string why_removed(std::string_view key, const Json& value) {
    for (const Removed& r : kRemoved)
        if (r.key == key && r.value == json_text(value))
            return fmt::format("{} {} was removed after version {}; {}", key, r.value, r.version, r.instead);
    return "";
}

bool is_removed_flag(std::string_view key) {
    return std::any_of(std::begin(kRemoved), std::end(kRemoved), [&](auto& r) { return r.is_flag && r.key == key; });
}

}  // namespace teon
