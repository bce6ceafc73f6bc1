// One table per enum: its values and their names, for the command line and for messages. The table is defined beside
// the enum:
//   template <>
//   inline constexpr auto kEnumNames<Color> = enum_names<Color>({{Color::red, "red"}, {Color::blue, "blue"}});
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <type_traits>

namespace teon {

template <typename E>
struct EnumName {
    E value;
    std::string_view name;
};

template <typename E, size_t n>
constexpr std::array<EnumName<E>, n> enum_names(const EnumName<E> (&table)[n]) {
    return std::to_array(table);
}

template <typename E>
inline constexpr std::nullptr_t kEnumNames = nullptr;  // the enum has no names

template <typename E>
requires(!std::is_same_v<decltype(kEnumNames<E>), const std::nullptr_t>) constexpr std::string_view name_of(E value) {
    for (const EnumName<E>& row : kEnumNames<E>)
        if (row.value == value) return row.name;
    return "?";
}

// Returns the value with this name, if there is one.
template <typename E>
constexpr std::optional<E> value_named(std::string_view name) {
    for (const EnumName<E>& row : kEnumNames<E>)
        if (row.name == name) return row.value;
    return std::nullopt;
}

}  // namespace teon
