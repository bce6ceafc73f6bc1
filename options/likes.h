// --like: the flags with which a run makes another program's updates. docs/optimizers.md, "Muon elsewhere", says how
// they were measured; test/golden/make_likes.py has the updates.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

#include "options/option_table.h"

namespace teon {

struct Like {
    std::string_view name;
    std::string_view program;       // and its version
    std::string_view flags;         // on a command line
    std::string_view not_repeated;  // what no flag repeats; "": nothing but what concerns all (docs/optimizers.md)
};
std::span<const Like> likes();
const Like* like_named(std::string_view name);  // nullptr: there is none

// Sets the flags of `like`, but those that the user gave, and returns their names.
std::set<std::string> apply(const Like& like, const OptionTable& table, const std::set<std::string>& by_user);

// Returns what a plan says: the program, the flags as they are, and those that have other values than it.
std::string like_text(const Like& like, const OptionTable& table);

}  // namespace teon
