// Damaged files and random command lines. Each is either accepted, or refused by an Error of one line that names the
// file or a word of the command line. Any other exception, a crash or a hang fails the test.
#include <algorithm>
#include <fstream>

#include "data/tokenizer.h"
#include "model/gpt2.h"
#include "options/command_line.h"
#include "options/config_file.h"
#include "options/parse_options.h"
#include "test/support/catch.h"
#include "test/support/fuzz.h"
#include "test/support/json.h"
#include "test/support/temp_dir.h"
#include "test/support/token_table.h"

using namespace teon;
using namespace teon::test;
using nlohmann::json;

namespace {

constexpr const char* kJsonPieces[] = {
    "{",         "}",          "[",      "]",       ",",    ":",       "\"",
    "\\",        "-1",         "0",      "1e99",    "null", "true",    "[[[[[[",
    "{\"a\":",   "\xff",       "\n",     "\"a\"",   "1.5",  "\\u0000", "9223372036854775808",
    "\"vocab\"", "\"merges\"", "\"id\"", "\"type\""};

// Returns "" if the call succeeds, else the message of the Error that it throws, which must be one line when printed.
template <typename F>
std::string refusal(F call) {
    try {
        call();
        return "";
    } catch (const Error& error) {
        const std::string message = error.what();
        REQUIRE(!message.empty());
        REQUIRE(message.find("json.exception") == std::string::npos);
        const std::string line = error_line("x", message);
        REQUIRE(line.find('\n') == line.size() - 1);
        return message;
    }
}

}  // namespace

TEST_CASE("files/json: damaged text is refused, or read as another reader reads it (fuzz)") {
    const std::string seed = json({{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}}},
                                   {"list", {1, -2, 2.5, nullptr, true, "t\u00e9xt"}},
                                   {"nested", {{{"a", {json::array(), json::object()}}}}}})
                                 .dump(1);
    Fuzz fuzz(1);
    int accepted = 0;
    const int rounds = fuzz_rounds(20000);
    for (int i = 0; i < rounds; ++i) {
        const std::string text = fuzz.damaged(seed, kJsonPieces);
        const json other = json::parse(text, nullptr, false);
        Json ours;
        const std::string said = refusal([&] { ours = parse_json(text, "some.json"); });
        INFO(text);
        if (said.empty()) {
            REQUIRE(library_json(ours) == other);
            ++accepted;
        } else {
            REQUIRE(said.starts_with("some.json: "));
            REQUIRE((other.is_discarded() || !other.is_object() || said.find("twice") != std::string::npos));
        }
    }
    REQUIRE(accepted > rounds / 100);
    REQUIRE(accepted < rounds / 2);
}

TEST_CASE("data/tokenizer: a damaged tokens.bin is refused by name, or decodes (fuzz)") {
    TempDir folder;
    auto use = [&] {
        const Tokenizer tokenizer(folder.path());
        tokenizer.decode(std::vector<int>{-1, 0, 4, 255, 256, 1 << 30});
    };
    write_file(folder / "description.json", R"({"kind": "bytes", "delimiter": 256})");
    Fuzz fuzz(2);
    constexpr const char* kBytes[] = {"\1a", "\xff", "\2ab"};
    for (const int32_t version : {2, 3}) {
        std::vector<std::string> texts = single_bytes();
        texts.emplace_back();  // the delimiter
        const std::string tokens = token_table(version, texts, 256, true);
        write_file(folder / "tokens.bin", tokens);
        REQUIRE(refusal(use).empty());
        int accepted = 0;
        const int rounds = fuzz_rounds(4000);
        for (int i = 0; i < rounds; ++i) {
            write_file(folder / "tokens.bin", fuzz.damaged(tokens, kBytes));
            const std::string said = refusal(use);
            accepted += said.empty();
            if (!said.empty()) REQUIRE(said.starts_with(folder / "tokens.bin"));
        }
        REQUIRE(accepted > rounds / 100);
    }
}

TEST_CASE("options/config_file: a damaged file is refused with its line, or read (fuzz)") {
    const std::string seed =
        "# a run\noptimizer = \"teon\"\nlr = 2e-2\nlayers = 3\nteon-roles = [\"q\", 'k',\n  \"v\"]\n"
        "nesterov = true\nlr-scale = {q = 0.5, o = 2}\nprompt = \"\\u00e9 \\\"x\\\"\"\n";
    constexpr const char* kPieces[] = {"=",  "[",   "]", "{", "}", ",",    "\"",  "'",         "#",   "\n",
                                       "\\", "\\u", ".", "_", "-", "true", "1e5", "key = 1\n", "\xff"};
    REQUIRE(parse_toml(seed, "x").size() == 7);
    Fuzz fuzz(3);
    int accepted = 0;
    const int rounds = fuzz_rounds(20000);
    for (int i = 0; i < rounds; ++i) {
        const std::string text = fuzz.damaged(seed, kPieces);
        INFO(text);
        const std::string said = refusal([&] { parse_toml(text, "some.toml"); });
        accepted += said.empty();
        if (!said.empty()) REQUIRE(said.starts_with("some.toml: line "));
    }
    REQUIRE(accepted > rounds / 100);
    REQUIRE(accepted < rounds * 9 / 10);
}

TEST_CASE("options/options: any words are options, or refused in one line that names one of them (fuzz)") {
    const ModelFamily family = gpt2_family();
    Options defaults;
    std::vector<std::string> flags = {"--config", "--leyers", "-x", "--", "--=", "--lr="};
    const Json every = options_json(family, defaults);
    for (const auto& [name, value] : every.members()) flags.push_back("--" + name);
    constexpr const char* kValues[] = {"0",     "1",     "-1",   "3",    "0.5",     "1e9",    "1e999", "nan",
                                       "512Ki", "",      " ",    "on",   "off",     "maybe",  "q",     "q=0.5",
                                       "q=",    "=",     ",",    ",,",   "q,k",     "tiny",   "teon",  "muon",
                                       "float", "10:12", "1:",   "::",   "1h",      "23h50m", "/",     "/dev/null",
                                       "/none", "x",     "\xff", "a\nb", "\x1b[2J", "%s%n",   "{}",    "-"};
    std::vector<std::string> values(std::begin(kValues), std::end(kValues));
    values.emplace_back(5000, 'y');
    Fuzz fuzz(4);
    int accepted = 0;
    const int rounds = fuzz_rounds(20000);
    for (int i = 0; i < rounds; ++i) {
        std::vector<std::string> words;
        if (fuzz.below(2)) words = {"--plan-only", "--data", "x"};
        for (size_t n = fuzz.below(4); n > 0; --n) {
            words.push_back(fuzz.below(8) ? fuzz.any(flags) : fuzz.any(values));
            for (size_t k = fuzz.below(3); k > 0; --k) {
                if (fuzz.below(4) == 0)
                    words.back() += "=" + fuzz.any(values);
                else
                    words.push_back(fuzz.any(values));
            }
        }
        std::vector<const char*> argv = {"train_gpt2"};
        for (const std::string& word : words) argv.push_back(word.c_str());
        const std::string said = refusal([&] { parse_options(family, static_cast<int>(argv.size()), argv.data()); });
        INFO(fmt::format("{}: {}", json(words).dump(-1, ' ', true, json::error_handler_t::replace), said));
        accepted += said.empty();
        if (said.empty()) continue;
        auto named = [&](const std::string& part) {
            return !part.empty() &&
                   (said.find(part) != std::string::npos || said.find(shown(part)) != std::string::npos);
        };
        const bool names_a_word = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
            const size_t equals = std::min(word.find('='), word.size());
            return word.empty() || named(word) || named(word.substr(0, equals)) ||
                   named(word.substr(std::min(equals + 1, word.size())));
        });
        REQUIRE((names_a_word || said.starts_with("--data: missing")));
    }
    REQUIRE(accepted > rounds / 50);
    REQUIRE(accepted < rounds * 9 / 10);
}
