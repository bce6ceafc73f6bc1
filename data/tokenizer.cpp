#include "data/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <queue>

#include "base/check.h"
#include "data/words.h"
#include "files/file.h"
#include "files/json.h"

namespace teon {

namespace {

using nlohmann::json;

constexpr int64_t kMaxFile = int64_t{256} << 20;
constexpr int kMaxTokens = 1 << 22;  // ids; the largest vocabularies in use have 300 thousand

// GPT-2 spells bytes as printable characters. Returns the byte of a code point, -1 if it is not such a character.
int byte_of(char32_t c) {
    static const std::array<int, 512> table = [] {
        std::array<int, 512> t;
        t.fill(-1);
        int others = 256;
        for (int byte = 0; byte < 256; ++byte) {
            const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
            t[static_cast<size_t>(printable ? byte : others++)] = byte;
        }
        return t;
    }();
    return c < table.size() ? table[c] : -1;
}

// Returns the bytes that `word` spells in these characters, nullopt if it contains another character. They are below
// U+0200, so each takes one or two bytes of UTF-8.
std::optional<std::string> spelled_bytes(std::string_view word) {
    std::string bytes;
    for (size_t i = 0; i < word.size(); ++i) {
        char32_t c = static_cast<unsigned char>(word[i]);
        if (c >= 0x80) {
            if ((c & 0xe0) != 0xc0 || i + 1 == word.size()) return std::nullopt;
            c = (c & 0x1f) << 6 | (static_cast<unsigned char>(word[++i]) & 0x3f);
        }
        const int byte = byte_of(c);
        if (byte < 0) return std::nullopt;
        bytes.push_back(static_cast<char>(byte));
    }
    return bytes;
}

// Returns the bytes of a SentencePiece piece. <0x0A> is a byte, U+2581 a blank.
std::string piece_bytes(const std::string& piece) {
    auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
    if (piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>' && digit(piece[3]) >= 0 &&
        digit(piece[4]) >= 0)
        return std::string(1, static_cast<char>(digit(piece[3]) * 16 + digit(piece[4])));
    std::string bytes;
    for (size_t at = 0, end; at < piece.size(); at = end + 3) {
        end = std::min(piece.find("\u2581", at), piece.size());
        bytes += piece.substr(at, end - at);
        if (end < piece.size()) bytes += ' ';
    }
    return bytes;
}

// Returns why a tokenizer.json is not GPT-2's scheme with another vocabulary; empty if it is.
std::string not_like_gpt2(const JsonObject& j, const JsonObject& model) {
    if (model.get<std::string>("type", "") != "BPE" || model.get("byte_fallback", false)) return "not a byte-level BPE";
    const json splitter = j.get("pre_tokenizer", json::object());
    const JsonObject words(splitter, j.name() + ": pre_tokenizer");
    if (words.get<std::string>("type", "") != "ByteLevel" || !words.get("use_regex", true) ||
        words.get("add_prefix_space", true))
        return "its words are not split as GPT-2's";
    if (j.has("normalizer")) return "it normalizes text";
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
        if (!model.get<std::string>(key, "").empty()) return "its tokens have affixes";
    return model.get("ignore_merges", false) ? "it looks up whole words" : "";
}

uint64_t pair_key(int left, int right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Tokenizer::Tokenizer(const std::string& folder) {
    const std::string description_path = folder + "/description.json", json_path = folder + "/tokenizer.json";
    std::error_code unreadable;  // reported when the file is opened
    if (std::filesystem::exists(description_path, unreadable) || unreadable) {
        const json parsed = read_json(description_path);
        const JsonObject description(parsed, description_path);
        const auto kind = description.get<std::string>("kind", "");
        delimiter_ = description.get("delimiter", -1);
        read_token_bytes(folder + "/tokens.bin");
        if (kind == "bytes") {
            number_bytes();
        } else if (kind == "gpt2") {
            number_bytes();
            read_vocab_bpe(folder + "/vocab.bpe");
        } else if (kind == "huggingface") {
            read_tokenizer_json(json_path, false);
        } else {
            cannot_encode_ = fmt::format("its kind is '{}'", kind);
        }
    } else {
        CHECK_USAGE(std::filesystem::exists(json_path, unreadable) || unreadable,
                    "{}: has neither description.json nor tokenizer.json", folder);
        read_tokenizer_json(json_path, true);
    }
    token_of_ = {};
}

// llm.c's layout: 256 int32 (magic 20240328, version 2, vocabulary size, delimiter), then for each id a length byte and
// the bytes.
void Tokenizer::read_token_bytes(const std::string& path) {
    const std::string file = read_text(path, kMaxFile);
    int32_t header[4];
    CHECK_USAGE(file.size() >= 1024, "{}: {} bytes are less than its header", path, file.size());
    std::memcpy(header, file.data(), sizeof header);
    CHECK_USAGE(header[0] == 20240328 && header[1] == 2, "{}: magic {} version {}, expected 20240328 version 2", path,
                header[0], header[1]);
    size_t at = 1024;
    while (at < file.size()) {
        CHECK_USAGE(vocab_size() < kMaxTokens, "{}: more than {} tokens", path, kMaxTokens);
        const auto length = static_cast<unsigned char>(file[at++]);
        CHECK_USAGE(at + length <= file.size(), "{}: ends within token {}", path, bytes_.size());
        bytes_.push_back(file.substr(at, length));
        at += length;
    }
    CHECK_USAGE(vocab_size() == header[2], "{}: {} tokens, its header says {}", path, bytes_.size(), header[2]);
}

void Tokenizer::number_bytes() {
    for (int token = 0; token < vocab_size(); ++token)
        if (token != delimiter_) token_of_.emplace(bytes_[static_cast<size_t>(token)], token);
    for (int byte = 0; byte < 256; ++byte) {
        const auto found = token_of_.find(std::string(1, static_cast<char>(byte)));
        if (found == token_of_.end()) {
            cannot_encode_ = fmt::format("it has no token for the byte {}", byte);
            return;
        }
        byte_token_.push_back(found->second);
    }
}

// vocab.bpe: a line with the version, then a merge per line.
void Tokenizer::read_vocab_bpe(const std::string& path) {
    const std::string file = read_text(path, kMaxFile);
    for (size_t line = file.find('\n') + 1, end; line != 0 && line < file.size(); line = end + 1) {
        end = std::min(file.find('\n', line), file.size());
        if (end > line) add_merge(file.substr(line, end - line), path);
    }
}

void Tokenizer::read_tokenizer_json(const std::string& path, bool decode_too) {
    const json file = read_json(path, {.bytes = kMaxFile});
    const JsonObject j(file, path);
    CHECK_USAGE(j.has("model") && file["model"].is_object(), "{}: has no model", path);
    const JsonObject model(file["model"], path + ": model");
    cannot_encode_ = not_like_gpt2(j, model);
    if (decode_too) read_tokens(file, path);
    if (!can_encode()) return;
    number_bytes();
    if (!can_encode() || !model.has("merges")) return;
    const json& merges = file["model"]["merges"];
    CHECK_USAGE(merges.is_array(), "{}: merges is not a list", model.name());
    for (const json& merge : merges) {
        const std::string where = model.name() + ": merges";
        if (merge.is_array() && merge.size() == 2) {
            add_merge(json_value<std::string>(merge[0], where), json_value<std::string>(merge[1], where), path);
        } else {
            add_merge(json_value<std::string>(merge, where), path);
        }
    }
}

// Reads the bytes of every token of the vocabulary and of the added tokens.
void Tokenizer::read_tokens(const nlohmann::json& file, const std::string& path) {
    const JsonObject j(file, path), model(file["model"], path + ": model");
    CHECK_USAGE(model.has("vocab") && file["model"]["vocab"].is_object(),
                "{}: has no vocabulary that maps texts to ids", path);
    const bool byte_level = j.get("decoder", json()).dump().find("ByteLevel") != std::string::npos;
    auto set = [&](int token, std::string text) {
        CHECK_USAGE(token >= 0 && token < kMaxTokens, "{}: token {} is out of range", path, token);
        if (token >= vocab_size()) bytes_.resize(static_cast<size_t>(token) + 1);
        bytes_[static_cast<size_t>(token)] = std::move(text);
    };
    for (const auto& [text, token] : file["model"]["vocab"].items()) {
        const auto spelled = byte_level ? spelled_bytes(text) : std::nullopt;
        set(json_value<int>(token, model.name() + ": vocab"), spelled ? *spelled : piece_bytes(text));
    }
    if (!j.has("added_tokens")) return;
    CHECK_USAGE(file["added_tokens"].is_array(), "{}: added_tokens is not a list", path);
    for (const json& item : file["added_tokens"]) {
        const JsonObject added(item, path + ": added_tokens");
        const auto text = added.at<std::string>("content");
        const auto id = added.at<int>("id");
        set(id, text);
        if (text == "<|endoftext|>" || text == "<|begin_of_text|>" || text == "<s>") delimiter_ = id;
    }
}

void Tokenizer::add_merge(const std::string& pair, const std::string& path) {
    const size_t blank = pair.find(' ');
    CHECK_USAGE(blank != std::string::npos, "{}: the merge '{}' is not a pair", path, pair);
    add_merge(pair.substr(0, blank), pair.substr(blank + 1), path);
}

void Tokenizer::add_merge(const std::string& left, const std::string& right, const std::string& path) {
    const auto a = spelled_bytes(left), b = spelled_bytes(right);
    const auto end = token_of_.end();
    const auto first = a ? token_of_.find(*a) : end, second = b ? token_of_.find(*b) : end;
    const auto joined = a && b ? token_of_.find(*a + *b) : end;
    CHECK_USAGE(first != end && second != end && joined != end,
                "{}: '{} {}' is not a merge of tokens in the vocabulary", path, left, right);
    merges_.emplace(pair_key(first->second, second->second), Merge{static_cast<int>(merges_.size()), joined->second});
}

std::string_view Tokenizer::bytes(int token) const {
    return token >= 0 && token < vocab_size() ? std::string_view(bytes_[static_cast<size_t>(token)])
                                              : std::string_view();
}

std::string Tokenizer::decode(std::span<const int> tokens) const {
    std::string text;
    for (int token : tokens) text += bytes(token);
    return text;
}

std::vector<int> Tokenizer::encode(std::string_view text) const {
    CHECK_USAGE(can_encode(),
                "this tokenizer cannot encode text here ({}); encode it with its own library and give the tokens",
                cannot_encode_);
    std::vector<int> tokens;
    while (!text.empty()) {
        const size_t word = merges_.empty() ? text.size() : first_word(text);
        encode_word(text.substr(0, word), tokens);
        text.remove_prefix(word);
    }
    return tokens;
}

// Merges the pair of neighbours of lowest rank, the first of several, until no pair can be merged. A queue of
// candidates makes this n log n for a word of n bytes; candidates whose tokens have changed in the meantime are
// skipped.
void Tokenizer::encode_word(std::string_view word, std::vector<int>& out) const {
    struct Symbol {
        int token, before, after;  // neighbours by index, -1 for none; token -1: merged into the one before
    };
    struct Candidate {
        int rank, at, left, right, token;
        bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
    };
    const int n = static_cast<int>(word.size());
    std::vector<Symbol> symbols;
    for (int i = 0; i < n; ++i)
        symbols.push_back(
            {byte_token_[static_cast<unsigned char>(word[static_cast<size_t>(i)])], i - 1, i + 1 < n ? i + 1 : -1});
    auto symbol = [&](int i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };

    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    auto consider = [&](int i) {
        if (i < 0 || symbol(i).after < 0) return;
        const int left = symbol(i).token, right = symbol(symbol(i).after).token;
        const auto merge = merges_.find(pair_key(left, right));
        if (merge != merges_.end()) queue.push({merge->second.rank, i, left, right, merge->second.token});
    };
    for (int i = 0; i + 1 < n; ++i) consider(i);
    while (!queue.empty()) {
        const Candidate c = queue.top();
        queue.pop();
        Symbol& left = symbol(c.at);
        if (left.token != c.left || left.after < 0 || symbol(left.after).token != c.right) continue;
        symbol(left.after).token = -1;
        left.token = c.token;
        left.after = symbol(left.after).after;
        if (left.after >= 0) symbol(left.after).before = c.at;
        consider(left.before);
        consider(c.at);
    }
    for (const Symbol& s : symbols)
        if (s.token >= 0) out.push_back(s.token);
}

}  // namespace teon
