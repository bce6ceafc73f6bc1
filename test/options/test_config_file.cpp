#include "options/config_file.h"

#include <fmt/format.h>

#include "base/check.h"
#include "test/support/catch.h"
#include "test/support/cpu_time.h"

using namespace teon;
using namespace teon::test;

TEST_CASE("options/config_file: TOML as its specification has it") {
    auto value_of = [](const std::string& text) {
        const std::vector<ConfigEntry> entries = parse_toml(text, "x.toml");
        REQUIRE(entries.size() == 1);
        REQUIRE(entries[0].key == "key");
        return entries[0].value;
    };
    const std::pair<const char*, Json> good[] = {
        {"key = 3", 3},
        {"key=+1_000_000 # a comment", 1000000},
        {"\t key\t=\t-2.5e-3\r\n\n", -2.5e-3},
        {"key = -0.5E+1", -5},
        {"\"key\" = true", true},
        {"'key' = false", false},
        {"key = \"a # b\"", "a # b"},
        {"key = \"a\tb\"", "a\tb"},
        {R"(key = "\t\"\\\u00e9\u20ac")", "\t\"\\\u00e9\u20ac"},
        {R"(key = 'C:\no\escapes')", R"(C:\no\escapes)"},
        {"key = \"\"", ""},
        {"key = []", Json::array()},
        {"key = [ \"q\", 'k' , ]", Json::array({"q", "k"})},
        {"key = [ # one to a line\n  1,\n\n  2 # two\n]", Json::array({1, 2})},
        {"key = { q = 0.5, \"o\" = 2 }", {{"q", 0.5}, {"o", 2}}},
    };
    for (const auto& [text, value] : good) {
        INFO(text);
        REQUIRE(value_of(text) == value);
    }
    REQUIRE(parse_toml("a = 1\nb = 2\n\nc = [1,\n2]\nd = 3", "x")[3].line == 6);
    const std::pair<const char*, const char*> bad[] = {
        {"key", "line 1: a flag is written as name = value"},
        {"= 3", "line 1: a flag is written as name = value"},
        {"a = 1\nkey =", "line 2: a value is missing"},
        {"key = \n3", "line 1: a value is missing"},
        {"key = teon", "teon is not a number; texts are written in quotes: \"teon\""},
        {"key = 512Ki", "texts are written in quotes: \"512Ki\""},
        {"key = nan", "is not a number"},
        {"key = 3 4", "more follows the value"},
        {"key = \"a", "a string lacks its closing \""},
        {"key = \"a\nb\"", "a string lacks its closing \""},
        {"key = \"\"\"a\"\"\"", "strings of several lines"},
        {"key = \"\\x\"", "an unknown escape"},
        {"key = \"\\u12\"", "an unknown escape"},
        {"key = \"\\ud800\"", "an unknown escape"},
        {"key = \"\\\"", "a string lacks its closing \""},
        {"key = \"a\\\n\"", "line 1: a string lacks its closing \""},
        {"key = null", "null is not a number"},
        {"key = +-1", "+-1 is not a number"},
        {"key = 1__0", "1__0 is not a number"},
        {"key = 1_", "1_ is not a number"},
        {"key = 012", "012 is not a number"},
        {"key = .5", ".5 is not a number"},
        {"key = 1.", "1. is not a number"},
        {"key = [1", "a list lacks its closing ]"},
        {"key = [1 2]", "a comma or ] is missing"},
        {"key = [[1]]", "a value is missing"},
        {"key = {q}", "a list in braces"},
        {"key = 1\nkey = 2", "line 2: key is given twice, also in line 1"},
        {"[section]\nkey = 1", "line 1: sections"},
        {"key.sub = 1", "key.sub"},
    };
    for (const auto& row : bad) {
        INFO(row.first);
        std::string key;  // a dotted key is read, but is the name of no flag
        const std::string message = error_of<UsageError>([&] { key = parse_toml(row.first, "x.toml")[0].key; });
        REQUIRE(contains(message + key, row.second));
    }
}

TEST_CASE("options/config_file: twice as many lines take about twice as long") {
    auto time_of = [](int lines) {
        std::string text;
        for (int i = 0; i < lines; ++i) text += fmt::format("key-{} = {}\n", i, i);
        return cpu_seconds_of([&] { REQUIRE(std::ssize(parse_toml(text, "x")) == lines); });
    };
    time_of(500);
    REQUIRE(time_of(20'000) < 400 * time_of(500));  // 40 times as many lines; quadratic would be 1600 times
}
