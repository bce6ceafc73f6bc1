// Names of an enum whose values have one row of a table each.
#pragma once

#include <utility>

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

template <auto VALUE>
using EnumConstant = std::integral_constant<decltype(VALUE), VALUE>;

// Calls f(EnumConstant<value>()), so that code can be chosen by the value at compile time. E ends with `count`.
template <typename E, typename F>
void with_constant(E value, F f) {
    [&]<size_t... i>(std::index_sequence<i...>) {
        ((static_cast<size_t>(value) == i ? f(EnumConstant<static_cast<E>(i)>()) : void()), ...);
    }
    (std::make_index_sequence<static_cast<size_t>(E::count)>());
}

}  // namespace teon
