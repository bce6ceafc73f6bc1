// Includes Catch2, version 2 (Debian 12) or 3 (Ubuntu 24.04). Every test program links test/support/main.cpp. CHECK
// remains the macro of base/check.h, whatever the order of includes; tests use REQUIRE.
#pragma once

#include <string>

#include "base/check.h"

#pragma push_macro("CHECK")
#undef CHECK
#if __has_include(<catch2/catch.hpp>)
#include <catch2/catch.hpp>
#elif __has_include(<catch.hpp>)
#include <catch.hpp>
#else
#include <catch2/catch_all.hpp>
#endif
#undef CHECK
#pragma pop_macro("CHECK")

namespace teon::test {

// Matches strings: REQUIRE_THROWS_WITH(f(), ContainsSubstring("cannot open")).
#if CATCH_VERSION_MAJOR >= 3
using Catch::Matchers::ContainsSubstring;
#else
inline auto ContainsSubstring(const std::string& part) { return Catch::Contains(part); }
#endif

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// Returns the message of the E that the call throws, "" if it throws nothing. Marks a message of more than one line.
template <typename E = Error, typename F>
std::string error_of(F&& call) {
    try {
        call();
    } catch (const E& error) {
        const std::string message = error.what();
        return contains(message, "\n") ? "more than one line: " + message : message;
    }
    return "";
}

}  // namespace teon::test
