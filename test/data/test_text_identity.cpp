#include "data/text_identity.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/hash.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/support/token_table.h"
#include "test/support/write_shard.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr int kDelimiter = 256;

// Writes a tokenizer as scripts/prepare.py does: 256 single bytes, the delimiter, then the given longer tokens.
void write_tokenizer(const std::string& folder, const std::vector<std::string>& longer) {
    std::vector<std::string> tokens = single_bytes();
    tokens.emplace_back();
    tokens.insert(tokens.end(), longer.begin(), longer.end());
    std::filesystem::create_directories(folder);
    write_file(folder + "/tokens.bin", token_table(2, tokens, kDelimiter));
    write_file(folder + "/description.json", R"({"kind": "sentencepiece"})");
}

// Tokens of a text, beginning with the delimiter: the longest of the longer tokens that fit, else single bytes.
std::vector<uint32_t> tokens_of(std::string_view text, const std::vector<std::string>& longer) {
    std::vector<uint32_t> tokens = {kDelimiter};
    while (!text.empty()) {
        uint32_t token = static_cast<unsigned char>(text[0]);
        size_t length = 1;
        for (size_t i = 0; i < longer.size(); ++i)
            if (longer[i].size() > length && text.starts_with(longer[i])) {
                token = static_cast<uint32_t>(257 + i);
                length = longer[i].size();
            }
        tokens.push_back(token);
        text.remove_prefix(length);
    }
    return tokens;
}

std::string sample_text(int words) {
    std::string text;
    uint32_t state = 1;
    for (int i = 0; i < words; ++i) {
        state = state * 1664525 + 1013904223;
        const std::string words_of_text[] = {"the ", "\n to", std::to_string(state % 1000)};
        text += words_of_text[state % 3];
    }
    return text;
}

std::string without_white_space(std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text;
}

TextIdentity identity(const std::string& folder, const std::vector<std::vector<uint32_t>>& shards,
                      const std::vector<std::string>& longer, int T, int64_t windows) {
    write_tokenizer(folder + "/tokenizer", longer);
    for (size_t i = 0; i < shards.size(); ++i) write_shard(fmt::format("{}/t_val_{:06}.bin", folder, i), shards[i]);
    return text_identity(open_dataset(folder, "val"), folder + "/tokenizer", T, windows).value();
}

using Beginnings = std::map<int64_t, std::string>;
Beginnings beginnings_of(const TextIdentity& identity) {
    return {identity.beginnings.begin(), identity.beginnings.end()};
}

}  // namespace

TEST_CASE("data/text_identity: one text has the same beginnings with every tokenizer") {
    TempDir folder;
    for (const int words : {1, 40, 700, 5000}) {
        const std::string text = sample_text(words);
        const std::string dense = without_white_space(text);
        const std::vector<std::string> longer = {"the ", " to", "99"};
        const std::vector<uint32_t> bytes = tokens_of(text, {});
        const std::vector<uint32_t> pairs = tokens_of(text, longer);
        const TextIdentity a = identity(folder / fmt::format("a{}", words), {bytes}, {}, 1, std::ssize(bytes));
        const TextIdentity b = identity(folder / fmt::format("b{}", words), {pairs}, longer, 1, std::ssize(pairs));
        REQUIRE(a.bytes == std::ssize(dense));
        REQUIRE(b.bytes == a.bytes);
        REQUIRE(b.beginnings == a.beginnings);
        REQUIRE(a.beginnings.size() <= 32);
        REQUIRE(a.beginnings.back().first * 16 >= a.bytes * 15);
        for (const auto& [size, hash] : a.beginnings)
            REQUIRE(hash == fmt::format("{:016x}", hash_of(dense.substr(0, static_cast<size_t>(size)))));
    }
}

TEST_CASE("data/text_identity: texts of about one length share a beginning of nine tenths, other texts none") {
    TempDir folder;
    const std::string text = sample_text(3000);
    const std::vector<uint32_t> tokens = tokens_of(text, {});
    int number = 0;
    for (int64_t windows = 2000; windows < 6000; windows += 97) {
        const TextIdentity a = identity(folder / std::to_string(++number), {tokens}, {}, 1, windows);
        const TextIdentity b = identity(folder / std::to_string(++number), {tokens}, {}, 1, windows * 51 / 50);
        const Beginnings of_a = beginnings_of(a);
        const Beginnings of_b = beginnings_of(b);
        int64_t common = 0;
        for (const auto& [size, hash] : of_a)
            if (of_b.count(size)) {
                REQUIRE(of_b.at(size) == hash);
                common = size;
            }
        REQUIRE(common * 10 >= b.bytes * 9);
    }
    std::string other = text;
    other[2] = '#';
    const Beginnings ours = beginnings_of(identity(folder / "ours", {tokens}, {}, 1, 5000));
    for (const auto& [size, hash] : beginnings_of(identity(folder / "other", {tokens_of(other, {})}, {}, 1, 5000)))
        REQUIRE(ours.at(size) != hash);
}

TEST_CASE("data/text_identity: windows end the text, in whichever shard") {
    TempDir folder;
    const std::string text = "abcdefghijklmnopqrstuvwxyz";
    const std::vector<uint32_t> tokens = tokens_of(text, {});
    // Windows of 4 targets: the third ends with token 12, "l".
    REQUIRE(identity(folder / "one", {tokens}, {}, 4, 3).bytes == 12);
    // The first shard, of a delimiter and 9 bytes, has 2 windows; the third is the second shard's.
    const std::vector<uint32_t> first(tokens.begin(), tokens.begin() + 10);
    const std::vector<uint32_t> second(tokens.begin() + 10, tokens.end());
    const TextIdentity two = identity(folder / "two", {first, second}, {}, 4, 3);
    REQUIRE(two.bytes == 9 + 5);
    REQUIRE(beginnings_of(two).at(14) == fmt::format("{:016x}", hash_of(text.substr(0, 14))));
    REQUIRE(!text_identity(open_dataset(folder / "two", "val"), folder / "none", 4, 3));
}
