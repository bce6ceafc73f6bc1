#include "options/command_line.h"

#include <fstream>

#include "files/json.h"
#include "test/support/catch.h"
#include "test/support/parse.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

TEST_CASE("options/command_line: a word unlike every flag gets no suggestion") {
    for (const char* flag : {"--frobnicate", "--xy", "-q", "--", "--zzz=3"}) {
        INFO(flag);
        const std::string word = std::string(flag).substr(0, std::string(flag).find('='));
        REQUIRE(complaint({flag}) == word + ": no such flag (--help-all lists all)");
    }
    TempDir folder;
    std::ofstream(folder / "run.toml") << "frobnicate = 3\n";
    REQUIRE(complaint({"--config", folder / "run.toml"}) ==
            folder / "run.toml" + ": line 1: there is no flag 'frobnicate'");
}

TEST_CASE("options/command_line: an empty value sets no switch") {
    for (const char* flag : {"--shuffle=", "--nesterov="}) {
        INFO(flag);
        REQUIRE(contains(complaint({"--plan-only", "--optimizer", "teon", flag}), "must be on or off"));
    }
    REQUIRE(contains(complaint({"--plan-only", "--shuffle", ""}), "must be on or off"));
}

TEST_CASE("options/option_table: a number is finite") {
    for (const char* text : {"1e308Gi", "-1e308Gi", "1e309", "1e300G", "inf", "nan", ""}) {
        INFO(text);
        REQUIRE(!parse_number(text));
    }
    REQUIRE(parse_number("1e298Gi") == 1e298 * 0x1p30);
}

TEST_CASE("options/command_line: an error is one line whatever its message holds") {
    REQUIRE(error_line("x", "a\nb\x01\xff") == "x: error: a\\nb\\x01\\xff\n");
    REQUIRE(error_line("x", "\u00e9") == "x: error: \u00e9\n");
    std::string name;  // of 5,000 characters, two bytes each
    for (int i = 0; i < 5000; ++i) name += "\u00e9";
    const std::string line = error_line("x", "FOLDER/" + name + ": no such file");
    REQUIRE(line.size() < 500);
    REQUIRE(line.starts_with("x: error: FOLDER/\u00e9"));
    REQUIRE(line.ends_with("\u00e9: no such file\n"));
    REQUIRE(is_utf8(line));
    std::string blanks;
    for (int i = 0; i < 2500; ++i) blanks += "\u00e9 ";
    REQUIRE(error_line("x", blanks).size() < 2100);
    REQUIRE(is_utf8(error_line("x", blanks)));
    const std::string path(390, 'p');
    REQUIRE(error_line("x", path) == "x: error: " + path + "\n");
}
