#include "data/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "data/words.h"
#include "test/skip.h"
#include "test/temp_dir.h"

#include "test/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

void write(const std::string& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }

// tokens.bin as scripts/prepare.py writes it.
void write_tokens(const std::string& path, const std::vector<std::string>& tokens, int delimiter) {
    int32_t header[256] = {20240328, 2, static_cast<int32_t>(tokens.size()), delimiter};
    std::string file(reinterpret_cast<const char*>(header), sizeof header);
    for (const std::string& token : tokens) file += static_cast<char>(token.size()) + token;
    write(path, file);
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
    try {
        Tokenizer t(folder);
    } catch (const UsageError& error) { return error.what(); }
    return "no complaint";
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
    REQUIRE(words("a\xff\xc3") == Words{"a", "\xff\xc3"});  // not UTF-8: symbols
}

TEST_CASE("data/tokenizer: bytes are their own tokens") {
    TempDir folder;
    std::vector<std::string> tokens = single_bytes();
    tokens.push_back("");
    write_tokens(folder / "tokens.bin", tokens, 256);
    write(folder / "description.json", R"({"kind": "bytes", "delimiter": 256, "vocab_size": 257})");
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
    write(folder / "description.json", R"({"kind": "gpt2", "delimiter": 262})");
    write(folder / "vocab.bpe", "#version: 0.2\na b\nb c\nab c\n\u0120 a\na a\naa aa\n");
    const Tokenizer t(folder.path());
    REQUIRE(t.encode("abc") == std::vector<int>{258});  // ab first, then abc
    REQUIRE(t.encode("bcab") == std::vector<int>{257, 256});
    REQUIRE(t.encode("ab ab") == std::vector<int>{256, ' ', 256});  // a b goes before the blank and a
    REQUIRE(t.encode("b a") == std::vector<int>{'b', 259});
    REQUIRE(t.encode("aaaaaaa") == std::vector<int>{261, 260, 'a'});
    REQUIRE(t.encode("").empty());
    REQUIRE(t.encode("<|endoftext|>").size() > 1);  // text, not the delimiter
    const std::string long_word(200000, 'a');       // n log n, or this takes minutes
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
    write(folder / "tokenizer.json", j.dump());
    const Tokenizer partial(folder.path());  // no token for most bytes
    REQUIRE_FALSE(partial.can_encode());
    REQUIRE(partial.decode(std::vector<int>{4, 3, 5, 0}) == " abab\na");
    REQUIRE(partial.delimiter() == 6);

    j["decoder"] = {{"type", "ByteFallback"}};
    j["pre_tokenizer"] = nullptr;
    j["model"]["vocab"] = {{"<0x0A>", 0}, {"\u2581the\u2581", 1}, {"<unk>", 2}};
    write(folder / "tokenizer.json", j.dump());
    const Tokenizer pieces(folder.path());
    REQUIRE(pieces.decode(std::vector<int>{1, 0, 2}) == " the \n<unk>");
    REQUIRE_FALSE(pieces.can_encode());
    REQUIRE_THROWS_AS(pieces.encode("a"), UsageError);
}

TEST_CASE("data/tokenizer: a damaged folder is named") {
    TempDir folder;
    REQUIRE(complaint(folder.path()).find("neither description.json nor tokenizer.json") != std::string::npos);
    write(folder / "description.json", "{");
    REQUIRE(complaint(folder.path()).find("description.json: not a JSON object") != std::string::npos);
    write(folder / "description.json", R"({"kind": "bytes", "delimiter": 256})");
    REQUIRE(complaint(folder.path()).find("tokens.bin: cannot be read") != std::string::npos);
    write(folder / "tokens.bin", std::string(100, 'x'));
    REQUIRE(complaint(folder.path()).find("less than its header") != std::string::npos);
    write(folder / "tokens.bin", std::string(2000, 'x'));
    REQUIRE(complaint(folder.path()).find("magic") != std::string::npos);
    write_tokens(folder / "tokens.bin", {"a", "b"}, 0);
    std::filesystem::resize_file(folder / "tokens.bin", 1024 + 3);
    REQUIRE(complaint(folder.path()).find("ends within token 1") != std::string::npos);
    std::filesystem::resize_file(folder / "tokens.bin", 1024 + 2);
    REQUIRE(complaint(folder.path()).find("1 tokens, its header says 2") != std::string::npos);
    write_tokens(folder / "tokens.bin", single_bytes(), 0);
    write(folder / "description.json", R"({"kind": "gpt2", "delimiter": "x"})");
    REQUIRE(complaint(folder.path()).find(folder.path()) != std::string::npos);
    write(folder / "description.json", R"({"kind": "gpt2", "delimiter": 300})");
    write(folder / "vocab.bpe", "#version\na bb\n");
    REQUIRE(complaint(folder.path()).find("'a bb' is not a merge") != std::string::npos);
}

TEST_CASE("data/tokenizer: GPT-2's vocabulary encodes tinyshakespeare.txt to 338,025 tokens and back") {
    const std::string bpe = "../shared/data/gpt2_bpe/vocab.bpe", text_path = "../shared/data/text/tinyshakespeare.txt";
    if (!std::filesystem::exists(bpe) || !std::filesystem::exists(text_path))
        SKIP_TEST("needs vocab.bpe of GPT-2 and tinyshakespeare.txt in ../shared/data");
    TempDir folder;
    std::filesystem::copy_file(bpe, folder / "vocab.bpe");
    std::ifstream merges(bpe), file(text_path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};

    // Ids: the single bytes, printable ones first, then the merges in order.
    std::vector<std::string> tokens;
    for (bool printable : {true, false})
        for (int byte = 0; byte < 256; ++byte)
            if (((byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173)) == printable)
                tokens.push_back(std::string(1, static_cast<char>(byte)));
    std::unordered_map<std::string, std::string> bytes_of;  // of a word in GPT-2's alphabet
    for (int i = 0, other = 256; i < 256; ++i) {
        const auto byte = static_cast<unsigned char>(tokens[static_cast<size_t>(i)][0]);
        const int c = i < 188 ? byte : other++;
        bytes_of[c < 128 ? std::string(1, static_cast<char>(c))
                         : std::string{static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))}] =
            tokens[static_cast<size_t>(i)];
    }
    std::string line, left, right;
    std::getline(merges, line);
    while (merges >> left >> right) {
        tokens.push_back(bytes_of.at(left) + bytes_of.at(right));
        bytes_of[left + right] = tokens.back();
    }
    tokens.push_back("<|endoftext|>");
    REQUIRE(tokens.size() == 50257);
    write_tokens(folder / "tokens.bin", tokens, 50256);
    write(folder / "description.json", R"({"kind": "gpt2", "delimiter": 50256})");
    const Tokenizer t(folder.path());
    REQUIRE(t.encode("Hello world") == std::vector<int>{15496, 995});
    const std::vector<int> encoded = t.encode(text);
    REQUIRE(encoded.size() == 338025);
    REQUIRE(t.decode(encoded) == text);
}
