#include "data/tokenizer.h"

#include <cstring>
#include <filesystem>

#include "files/file.h"
#include "test/support/catch.h"
#include "test/support/skip.h"
#include "test/support/temp_dir.h"
#include "test/support/token_table.h"

using namespace teon;
using namespace teon::test;

namespace {

std::string complaint(const std::string& folder) {
    return error_of<UsageError>([&] { Tokenizer t(folder); });
}

bool has_python() {
    return std::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1") == 0;
}

}  // namespace

TEST_CASE("data/tokenizer: bytes are encoded by the script and decoded by tokens.bin") {
    if (!has_python()) SKIP_TEST("needs Python 3.10");
    TempDir folder;
    std::vector<std::string> tokens = single_bytes();
    tokens.push_back("");
    write_file(folder / "tokens.bin", token_table(2, tokens, 256));
    write_file(folder / "description.json", R"({"kind": "bytes", "delimiter": 256, "vocab_size": 257})");
    const Tokenizer t(folder.path());
    REQUIRE(t.vocab_size() == 257);
    REQUIRE(t.delimiter() == 256);
    REQUIRE(t.encode("A\u00e9\n") == std::vector<int>{65, 0xc3, 0xa9, 10});
    REQUIRE(t.encode("").empty());
    REQUIRE(t.encode(std::string(300'000, 'x')) == std::vector<int>(300'000, 'x'));  // more than a socket holds
    REQUIRE(t.encode(std::string("a\0b\"\\", 5)) == std::vector<int>{'a', 0, 'b', '"', '\\'});
    REQUIRE(t.decode(std::vector<int>{72, 256, 105, 999, -1}) == "Hi");
    REQUIRE(contains(error_of<UsageError>([&] { t.encode("\xff"); }), "is not UTF-8"));
}

TEST_CASE("data/tokenizer: what the script cannot do is one line that names what works without it") {
    if (!has_python()) SKIP_TEST("needs Python 3.10");
    TempDir folder;
    write_file(folder / "tokens.bin", token_table(2, single_bytes(), 0));
    write_file(folder / "description.json", R"({"kind": "future", "delimiter": 0})");
    const std::string said = error_of<UsageError>([&] { Tokenizer(folder.path()).encode("a"); });
    INFO(said);
    REQUIRE(contains(said, "'future' is not a kind of tokenizer"));
    REQUIRE(contains(said, "--prompt-tokens works without"));
    REQUIRE(said.find('\n') == std::string::npos);

    std::filesystem::remove(folder / "description.json");
    write_file(folder / "tokenizer.json", "{");
    REQUIRE(contains(complaint(folder.path()), "--as-tokens works without"));
}

TEST_CASE("data/tokenizer: version 3 holds long tokens and the blank that a text's first token adds") {
    TempDir folder;
    const std::vector<std::string> tokens = {" a", "b", std::string(300, '='), "", " "};
    for (const bool added_blank : {false, true}) {
        const std::string file = token_table(3, tokens, 3, added_blank);
        write_file(folder / "tokens.bin", file);
        write_file(folder / "description.json", R"({"kind": "sentencepiece", "delimiter": 3})");
        const Tokenizer t(folder.path());
        const std::string blank = added_blank ? "" : " ";
        REQUIRE(t.bytes(2) == tokens[2]);
        REQUIRE(t.bytes(0) == " a");
        REQUIRE(t.bytes(0, true) == blank + "a");
        REQUIRE(t.decode(std::vector<int>{0, 0, 1}) == blank + "a ab");
        REQUIRE(t.decode(std::vector<int>{1, 0, 3, 0, 4, 3, 4, 0}) == "b a" + blank + "a " + blank + " a");

        write_file(folder / "tokens.bin", file + "x");
        REQUIRE(contains(complaint(folder.path()), "1 bytes follow its 5 tokens"));
        write_file(folder / "tokens.bin", file.substr(0, file.size() - 1));
        REQUIRE(contains(complaint(folder.path()), "ends within token 4"));
        write_file(folder / "tokens.bin", file.substr(0, 1024 + 19));
        REQUIRE(contains(complaint(folder.path()), "ends within its lengths"));
    }
}

TEST_CASE("data/tokenizer: a damaged folder is named") {
    TempDir folder;
    REQUIRE(contains(complaint(folder.path()), "neither description.json, tokenizer.json nor tokenizer.model"));
    write_file(folder / "description.json", "{");
    REQUIRE(contains(complaint(folder.path()), "description.json: not valid JSON: line 1"));
    write_file(folder / "description.json", R"({"kind": "bytes", "delimiter": 256})");
    REQUIRE(contains(complaint(folder.path()), "tokens.bin: cannot be opened"));
    write_file(folder / "tokens.bin", std::string(100, 'x'));
    REQUIRE(contains(complaint(folder.path()), "less than its header"));
    write_file(folder / "tokens.bin", std::string(2000, 'x'));
    REQUIRE(contains(complaint(folder.path()), "magic"));
    write_file(folder / "tokens.bin", token_table(2, {"a", "b"}, 0));
    std::filesystem::resize_file(folder / "tokens.bin", 1024 + 3);
    REQUIRE(contains(complaint(folder.path()), "ends within token 1"));
    std::filesystem::resize_file(folder / "tokens.bin", 1024 + 2);
    REQUIRE(contains(complaint(folder.path()), "ends before token 1"));
    write_file(folder / "tokens.bin", token_table(2, {"a", "b"}, 0));
    std::filesystem::resize_file(folder / "tokens.bin", 1024 + 5);
    REQUIRE(contains(complaint(folder.path()), "1 bytes follow its 2 tokens"));
    std::string many = token_table(2, {}, 0);
    const int32_t count = (1 << 22) + 1;
    std::memcpy(many.data() + 8, &count, sizeof count);
    write_file(folder / "tokens.bin", many);
    REQUIRE(contains(complaint(folder.path()), "4194305 tokens, expected 0 to 4194304"));
    write_file(folder / "tokens.bin", token_table(2, single_bytes(), 0));
    write_file(folder / "description.json", R"({"kind": "gpt2", "delimiter": "x"})");
    REQUIRE(contains(complaint(folder.path()), folder.path()));
}

TEST_CASE("data/tokenizer: a folder without permission is named") {
    TempDir folder;
    write_file(folder / "tokenizer.json", "{}");
    REQUIRE(error_of_unreadable<ReadError>(folder.path(), [&] { Tokenizer t(folder.path()); }) ==
            folder / "description.json: cannot be opened: Permission denied");
}
