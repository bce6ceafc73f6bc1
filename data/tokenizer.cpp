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

// Returns f(encoder). The encoder, if there is none yet, is started for the folder. An Error names what works without.
template <typename F>
auto ask(std::unique_ptr<TextEncoder>& encoder, const std::string& folder, const char* without, F f) {
    try {
        if (!encoder) encoder = std::make_unique<TextEncoder>(folder);
        return f(*encoder);
    } catch (const Error& error) { throw UsageError(fmt::format("{}; {} works without", error.what(), without)); }
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
        const std::string table = ask(encoder_, folder, "--prompt-tokens 1,2,3 with --as-tokens",
                                      [](TextEncoder& encoder) { return encoder.tokens_bin(); });
        read_token_bytes(table, folder);
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
    return ask(encoder_, folder_, "--prompt-tokens", [&](TextEncoder& encoder) { return encoder.encode(text); });
}

}  // namespace teon
