#include "options/removed.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

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
    {"gelu-fusion", "true", "0.2.0", "leave it out; --init-from takes the weights of such a run"},
    {"autotune", "true", "0.2.0", "leave it out; --init-from takes the weights of such a run"},
    {"algorithms", "", "0.2.0", ""},
};

}  // namespace

void check_not_removed(std::string_view key, const Json& value, const std::string& where) {
    for (const Removed& r : kRemoved)
        CHECK_USAGE(r.key != key || r.value != json_text(value), "{}: {} {} was removed after version {}; {}", where,
                    key, r.value, r.version, r.instead);
}

bool is_removed_flag(std::string_view key) {
    return std::any_of(std::begin(kRemoved), std::end(kRemoved), [&](auto& r) { return r.is_flag && r.key == key; });
}

}  // namespace teon
