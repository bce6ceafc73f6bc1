#include "data/tokenizer.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "files/file.h"
#include "files/json.h"

namespace teon {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxFile = int64_t{256} << 20;
constexpr int kMaxTokens = 1 << 22;  // ids; the largest vocabularies in use have 300 thousand

bool exists(const std::string& path) {
    std::error_code unreadable;  // reported when the file is opened
    return fs::exists(path, unreadable) || unreadable;
}

std::string from_hexadecimal(const std::string& digits) {
    const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    std::string bytes;
    for (size_t i = 0; i + 1 < digits.size(); i += 2)
        bytes.push_back(static_cast<char>(value(digits[i]) << 4 | value(digits[i + 1])));
    return bytes;
}

}  // namespace

bool Tokenizer::is_in(const std::string& folder) {
    return exists(folder + "/description.json") || exists(folder + "/tokenizer.json") ||
           exists(folder + "/tokenizer.model");
}

Tokenizer::Tokenizer(const std::string& folder) : folder_(folder) {
    CHECK_USAGE(is_in(folder), "{}: has neither description.json, tokenizer.json nor tokenizer.model", folder);
    const std::string description_path = folder + "/description.json";
    const std::string table_path = folder + "/tokens.bin";
    if (exists(description_path)) {
        const Json parsed = read_json(description_path);
        read_token_bytes(read_text(table_path, kMaxFile), table_path);
        delimiter_ = JsonObject(parsed, description_path).get("delimiter", delimiter_);
    } else {
        const Json digits = ask({{"table", true}}, "tokens_bin", "--prompt-tokens 1,2,3 with --as-tokens");
        read_token_bytes(from_hexadecimal(digits.get<std::string>(folder)), folder);
    }
}

// 256 int32: magic 20240328, version, vocabulary size, delimiter, whether a text's first token has an added blank. In
// version 2, llm.c's, each id has a byte with its length and its bytes. In version 3 all lengths come first, as uint32.
void Tokenizer::read_token_bytes(const std::string& file, const std::string& path) {
    constexpr size_t kHeader = 1024;
    int32_t header[5];
    CHECK_USAGE(file.size() >= kHeader, "{}: {} bytes are less than its header", path, file.size());
    std::memcpy(header, file.data(), sizeof header);
    CHECK_USAGE(header[0] == 20240328 && (header[1] == 2 || header[1] == 3),
                "{}: magic {} version {}, expected 20240328 version 2 or 3", path, header[0], header[1]);
    const bool lengths_first = header[1] == 3;
    const int64_t vocabulary = header[2];
    CHECK_USAGE(vocabulary >= 0 && vocabulary <= kMaxTokens, "{}: {} tokens, expected 0 to {}", path, vocabulary,
                kMaxTokens);
    delimiter_ = header[3];
    adds_first_blank_ = lengths_first && header[4] == 1;
    const size_t lengths = lengths_first ? sizeof(uint32_t) * static_cast<size_t>(vocabulary) : 0;
    CHECK_USAGE(kHeader + lengths <= file.size(), "{}: ends within its lengths", path);
    size_t at = kHeader + lengths;
    bytes_.reserve(static_cast<size_t>(vocabulary));
    for (int64_t token = 0; token < vocabulary; ++token) {
        uint32_t length = 0;
        if (lengths_first) {
            std::memcpy(&length, file.data() + kHeader + sizeof length * static_cast<size_t>(token), sizeof length);
        } else {
            CHECK_USAGE(at < file.size(), "{}: ends before token {}", path, token);
            length = static_cast<unsigned char>(file[at++]);
        }
        CHECK_USAGE(length <= file.size() - at, "{}: ends within token {}", path, token);
        bytes_.push_back(file.substr(at, length));
        at += length;
    }
    CHECK_USAGE(at == file.size(), "{}: {} bytes follow its {} tokens", path, file.size() - at, vocabulary);
}

std::string_view Tokenizer::bytes(int token, bool begins_text) const {
    if (token < 0 || token >= vocab_size()) return {};
    std::string_view bytes = bytes_[static_cast<size_t>(token)];
    if (begins_text && adds_first_blank_ && bytes.starts_with(' ')) bytes.remove_prefix(1);
    return bytes;
}

std::string Tokenizer::decode(std::span<const int> tokens) const {
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) text += bytes(tokens[i], i == 0 || tokens[i - 1] == delimiter_);
    return text;
}

std::vector<int> Tokenizer::encode(std::string_view text) const {
    CHECK_USAGE(is_utf8(text), "a text to encode is not UTF-8");
    std::vector<int> tokens;
    const Json answer = ask({{"text", text}}, "tokens", "--prompt-tokens");
    for (const Json& token : answer.items()) tokens.push_back(token.get<int>(folder_ + ": token"));
    return tokens;
}

Json Tokenizer::ask(const Json& request, const char* key, const char* without) const {
    constexpr double kPatienceSeconds = 120;  // a library on a slow disk of a network takes a minute to load
    try {
        if (!script_) script_ = std::make_unique<Script>("encode_text.py", std::vector{folder_}, kPatienceSeconds);
        return script_->ask(request, key);
    } catch (const Error& error) {
        throw UsageError(fmt::format("the tokenizer in {}: {}; {} works without", folder_, error.what(), without));
    }
}

}  // namespace teon
