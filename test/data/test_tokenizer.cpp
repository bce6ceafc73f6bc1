#include "data/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "data/words.h"
#include "files/file.h"
#include "test/support/catch.h"
#include "test/support/skip.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

namespace {

// Writes tokens.bin as scripts/prepare.py does.
void write_tokens(const std::string& path, const std::vector<std::string>& tokens, int delimiter) {
    int32_t header[256] = {20240328, 2, static_cast<int32_t>(tokens.size()), delimiter};
    std::string file(reinterpret_cast<const char*>(header), sizeof header);
    for (const std::string& token : tokens) file += static_cast<char>(token.size()) + token;
    write_file(path, file);
}

std::vector<std::string> single_bytes() {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, static_cast<char>(byte)));
    return tokens;
}

std::vector<std::string> words(std::string_view text) {
    std::vector<std::string> list;
    while (!text.empty()) {
        const size_t n = first_word(text);
        list.emplace_back(text.substr(0, n));
        text.remove_prefix(n);
    }
    return list;
}

std::string complaint(const std::string& folder) {
    return error_of<UsageError>([&] { Tokenizer t(folder); });
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("data/words: text is cut as GPT-2's pattern cuts it") {
    REQUIRE(words("Hello world") == Words{"Hello", " world"});
    REQUIRE(words("it's we'll I'm 'twas") == Words{"it", "'s", " we", "'ll", " I", "'m", " '", "twas"});
    REQUIRE(words("a1b2 34!?") == Words{"a", "1", "b", "2", " 34", "!?"});
    REQUIRE(words("a   b") == Words{"a", "  ", " b"});
    REQUIRE(words("a\n\nb\n") == Words{"a", "\n", "\n", "b", "\n"});
    REQUIRE(words("a \n") == Words{"a", " \n"});
    REQUIRE(words("  ") == Words{"  "});
    REQUIRE(words(" ") == Words{" "});
    REQUIRE(words("\ta") == Words{"\t", "a"});
    REQUIRE(words("é東京 ½٣ 🙂🙂x") == Words{"é東京", " ½٣", " 🙂🙂", "x"});
    REQUIRE(words("a\u00a0b\u3000\u3000c") == Words{"a", "\u00a0", "b", "\u3000", "\u3000", "c"});
    REQUIRE(words("a\xff\xc3") == Words{"a", "\xff\xc3"});  // bytes that are not UTF-8 are symbols
    // UTF-8 forbids overlong encodings: "a" in two, three and four bytes.
    for (const char* bytes : {"\xc1\xa1", "\xe0\x81\xa1", "\xf0\x80\x81\xa1"})
        REQUIRE(words(std::string("b") + bytes + "c") == Words{"b", bytes, "c"});
}

TEST_CASE("data/tokenizer: bytes are their own tokens") {
    TempDir folder;
    std::vector<std::string> tokens = single_bytes();
    tokens.push_back("");
    write_tokens(folder / "tokens.bin", tokens, 256);
    write_file(folder / "description.json", R"({"kind": "bytes", "delimiter": 256, "vocab_size": 257})");
    const Tokenizer t(folder.path());
    REQUIRE(t.vocab_size() == 257);
    REQUIRE(t.delimiter() == 256);
    REQUIRE(t.encode("A\xff\n") == std::vector<int>{65, 255, 10});
    REQUIRE(t.decode(std::vector<int>{72, 256, 105, 999, -1}) == "Hi");
}

TEST_CASE("data/tokenizer: pairs are joined in the order of their ranks") {
    TempDir folder;
    std::vector<std::string> tokens = single_bytes();
    for (const char* token : {"ab", "bc", "abc", " a", "aa", "aaaa"}) tokens.push_back(token);
    tokens.push_back("<|endoftext|>");
    write_tokens(folder / "tokens.bin", tokens, 262);
    write_file(folder / "description.json", R"({"kind": "gpt2", "delimiter": 262})");
    write_file(folder / "vocab.bpe", "#version: 0.2\na b\nb c\nab c\n\u0120 a\na a\naa aa\n");
    const Tokenizer t(folder.path());
    REQUIRE(t.encode("abc") == std::vector<int>{258});  // ab first, then abc
    REQUIRE(t.encode("bcab") == std::vector<int>{257, 256});
    REQUIRE(t.encode("ab ab") == std::vector<int>{256, ' ', 256});  // a b is merged before the blank and a
    REQUIRE(t.encode("b a") == std::vector<int>{'b', 259});
    REQUIRE(t.encode("aaaaaaa") == std::vector<int>{261, 260, 'a'});
    REQUIRE(t.encode("").empty());
    REQUIRE(t.encode("<|endoftext|>").size() > 1);  // text, not the delimiter
    const std::string long_word(200000, 'a');       // in n log n steps, or this takes minutes
    REQUIRE(t.decode(t.encode(long_word)) == long_word);
}

TEST_CASE("data/tokenizer: a tokenizer.json decodes, and encodes if it is of GPT-2's kind") {
    TempDir folder;
    nlohmann::json vocabulary;
    int next = 0;
    for (const char* text : {"a", "b", "\u0120", "ab", "\u0120ab", "\u010a"}) vocabulary[text] = next++;
    nlohmann::json j = {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a b", "\u0120 ab"}}}},
                        {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                        {"decoder", {{"type", "ByteLevel"}}},
                        {"normalizer", nullptr},
                        {"added_tokens", {{{"id", 6}, {"content", "<|endoftext|>"}}}}};
    write_file(folder / "tokenizer.json", j.dump());
    const Tokenizer partial(folder.path());  // no token for most bytes
    REQUIRE_FALSE(partial.can_encode());
    REQUIRE(partial.decode(std::vector<int>{4, 3, 5, 0}) == " abab\na");
    REQUIRE(partial.delimiter() == 6);

    j["decoder"] = {{"type", "ByteFallback"}};
    j["pre_tokenizer"] = nullptr;
    j["model"]["vocab"] = {{"<0x0A>", 0}, {"\u2581the\u2581", 1}, {"<unk>", 2}};
    write_file(folder / "tokenizer.json", j.dump());
    const Tokenizer pieces(folder.path());
    REQUIRE(pieces.decode(std::vector<int>{1, 0, 2}) == " the \n<unk>");
    REQUIRE_FALSE(pieces.can_encode());
    REQUIRE_THROWS_AS(pieces.encode("a"), UsageError);
}

TEST_CASE("data/tokenizer: a damaged folder is named") {
    TempDir folder;
    REQUIRE(contains(complaint(folder.path()), "neither description.json nor tokenizer.json"));
    write_file(folder / "description.json", "{");
    REQUIRE(contains(complaint(folder.path()), "description.json: not valid JSON: line 1"));
    write_file(folder / "description.json", R"({"kind": "bytes", "delimiter": 256})");
    REQUIRE(contains(complaint(folder.path()), "tokens.bin: cannot be opened"));
    write_file(folder / "tokens.bin", std::string(100, 'x'));
    REQUIRE(contains(complaint(folder.path()), "less than its header"));
    write_file(folder / "tokens.bin", std::string(2000, 'x'));
    REQUIRE(contains(complaint(folder.path()), "magic"));
    write_tokens(folder / "tokens.bin", {"a", "b"}, 0);
    std::filesystem::resize_file(folder / "tokens.bin", 1024 + 3);
    REQUIRE(contains(complaint(folder.path()), "ends within token 1"));
    std::filesystem::resize_file(folder / "tokens.bin", 1024 + 2);
    REQUIRE(contains(complaint(folder.path()), "1 tokens, its header says 2"));
    write_tokens(folder / "tokens.bin", {}, 0);
    std::filesystem::resize_file(folder / "tokens.bin", 1024 + (1 << 22) + 1);  // each zero is an empty token
    REQUIRE(contains(complaint(folder.path()), "more than 4194304 tokens"));
    write_tokens(folder / "tokens.bin", single_bytes(), 0);
    write_file(folder / "description.json", R"({"kind": "gpt2", "delimiter": "x"})");
    REQUIRE(contains(complaint(folder.path()), folder.path()));
    write_file(folder / "description.json", R"({"kind": "gpt2", "delimiter": 300})");
    write_file(folder / "vocab.bpe", "#version\na bb\n");
    REQUIRE(contains(complaint(folder.path()), "'a bb' is not a merge"));
}

TEST_CASE("data/tokenizer: a folder without permission is named") {
    TempDir folder;
    write_file(folder / "tokenizer.json", "{}");
    std::string said;
    {
        const Unreadable denied(folder.path());
        said = error_of<ReadError>([&] { Tokenizer t(folder.path()); });
    }
    REQUIRE(said == folder / "description.json: cannot be opened: Permission denied");
}

TEST_CASE("data/tokenizer: a tokenizer.json that is not what it should be is named, however deep or odd it is") {
    TempDir folder;
    const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
    const std::string model = R"("model": {"type": "BPE", "vocab": {"a": 0}, "merges": [)";
    const std::pair<std::string, const char*> cases[] = {
        {R"({"decoder": )" + deep + "}", "nested brackets"},
        {R"({"added_tokens": [{"id": 1, "content": ")" + std::string(1000, 'x') + R"("}]})", "has no model"},
        {R"({"model": 3})", "has no model"},
        {R"({"model": {"vocab": [["a", 0.5]]}})", "no vocabulary that maps texts to ids"},
        {R"({"model": {"vocab": {"a": "0"}}})", "vocab is \"0\", expected a whole number"},
        {R"({"model": {"vocab": {"a": -1}}})", "token -1 is out of range"},
        {R"({"model": {"vocab": {"a": 2147483647}}})", "token 2147483647 is out of range"},
        {R"({"model": {"type": 3, "vocab": {}}})", "type is 3, expected a text"},
        {R"({"pre_tokenizer": [], )" + model + "]}}", "expected an object"},
        {R"({"added_tokens": {}, )" + model + "]}}", "added_tokens is not a list"},
        {R"({"added_tokens": [7], )" + model + "]}}", "added_tokens is 7"},
        {R"({"added_tokens": [{"id": 1}], )" + model + "]}}", "content is missing"},
    };
    for (const auto& [text, says] : cases) {
        write_file(folder / "tokenizer.json", text);
        INFO(complaint(folder.path()));
        REQUIRE(contains(complaint(folder.path()), says));
        REQUIRE(complaint(folder.path()).find(folder / "tokenizer.json") == 0);
    }
}

namespace {

// GPT-2's tokens: the single bytes, printable ones first, then the merges of vocab.bpe in order, then the delimiter.
std::vector<std::string> gpt2_tokens(const std::string& bpe) {
    auto utf8 = [](int c) {
        return c < 128 ? std::string(1, static_cast<char>(c))
                       : std::string{static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    };
    std::vector<std::string> tokens;
    std::unordered_map<std::string, std::string> bytes_of;  // the bytes of a token in GPT-2's alphabet
    for (bool printable : {true, false})
        for (int byte = 0, other = 256; byte < 256; ++byte) {
            if (((byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173)) != printable) continue;
            tokens.push_back(std::string(1, static_cast<char>(byte)));
            bytes_of[utf8(printable ? byte : other++)] = tokens.back();
        }
    std::ifstream merges(bpe);
    std::string line, left, right;
    std::getline(merges, line);
    while (merges >> left >> right) {
        tokens.push_back(bytes_of.at(left) + bytes_of.at(right));
        bytes_of[left + right] = tokens.back();
    }
    tokens.push_back("<|endoftext|>");
    return tokens;
}

uint64_t fnv1a(const std::vector<int>& tokens) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int token : tokens) hash = (hash ^ static_cast<uint64_t>(token)) * 0x100000001b3;
    return hash;
}

}  // namespace

TEST_CASE("data/tokenizer: GPT-2's tokens are tiktoken's, of tinyshakespeare.txt all 338,025") {
    const std::string data = "../shared/data/", bpe = data + "gpt2_bpe/vocab.bpe";
    // The number of tiktoken's tokens, and their FNV-1a hash.
    const std::tuple<const char*, size_t, uint64_t> files[] = {
        {"text/tinyshakespeare.txt", 338025, 0xb547ad363c19676e},
        {"text/wikitext2_valid.txt", 258659, 0x401eab52e6652dd1},
        {"text/wikitext2_test.txt", 295877, 0xeeb9b6a7c5c7df94},
        {"english/english_val.jsonl", 233561, 0xbcad85f59f7da30e},
    };
    if (!std::filesystem::exists(bpe)) SKIP_TEST("needs GPT-2's vocab.bpe and texts in ../shared/data");
    TempDir folder;
    const std::vector<std::string> tokens = gpt2_tokens(bpe);
    REQUIRE(tokens.size() == 50257);
    std::filesystem::copy_file(bpe, folder / "vocab.bpe");
    write_tokens(folder / "tokens.bin", tokens, 50256);
    write_file(folder / "description.json", R"({"kind": "gpt2", "delimiter": 50256})");
    const Tokenizer t(folder.path());
    REQUIRE(t.encode("Hello world") == std::vector<int>{15496, 995});
    const std::string mixed(
        "Zw\u00f6lf Boxk\u00e4mpfer \u2014 \u201cna\u00efve\u201d \u6771\u4eac\u90fd 123\u00bd \u0663\u0664 e\u0301 "
        "\u00a0x\u2003y\tz\r\n\n  don't DON'T we'll'dve \U0001f642\U0001f44d\U0001f3fd \u200b\ufeff "
        "\ud55c\uad6d\uc5b4 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22 <|endoftext|> a\0b   \n",
        177);
    REQUIRE(t.encode(mixed) ==
            std::vector<int>{57,    86,    9101, 1652,  8315, 74,  11033, 3149, 2232,  851, 564,   250,   2616,
                             38776, 447,   251,  10545, 251,  109, 12859, 105,  32849, 121, 17031, 23141, 18923,
                             96,    149,   97,   304,   136,  223, 220,   1849, 87,    447, 225,   88,    197,
                             89,    201,   628,  220,   836,  470, 23917, 6,    51,    356, 1183,  1549,  303,
                             32485, 41840, 235,  8582,  237,  121, 20126, 171,  119,   123, 220,   47991, 250,
                             166,   113,   255,  168,   244,  112, 28225, 117,  11976, 123, 11976, 101,   24231,
                             235,   11976, 99,   24231, 222,  220, 31479, 226,  19567, 245, 19567, 95,    1279,
                             91,    437,   1659, 5239,  91,   29,  257,   188,  65,    220, 220,   220,   198});
    REQUIRE(t.decode(t.encode(mixed)) == mixed);
    for (const auto& [name, count, hash] : files) {
        INFO(name);
        const std::string text = read_file(data + name);
        const std::vector<int> encoded = t.encode(text);
        REQUIRE(encoded.size() == count);
        REQUIRE(fnv1a(encoded) == hash);
        REQUIRE(t.decode(encoded) == text);
    }
}
