// Names of an enum whose values have one row of a table each.
#pragma once

#include "base/enum_names.h"

namespace teon {

// Returns the names of an enum that ends with `count` and has one row of a table, {kind, name, ...}, for each other
// value. Does not compile if a value has no row, or if the rows are in another order.
template <typename Row, size_t n>
constexpr auto names_of_rows(const Row (&rows)[n]) {
    using E = decltype(Row::kind);
    static_assert(n == static_cast<size_t>(E::count), "each value of the enum needs one row");
    std::array<EnumName<E>, n> names = {};
    for (size_t i = 0; i < n; ++i) {
        if (static_cast<size_t>(rows[i].kind) != i || rows[i].name.empty())
            throw "the rows are not in the enum's order";
        names[i] = {rows[i].kind, rows[i].name};
    }
    return names;
}

}  // namespace teon
