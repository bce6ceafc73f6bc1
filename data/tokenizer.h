// Text to tokens and back, from the tokenizer folder that scripts/prepare.py writes beside shards or from a Hugging
// Face tokenizer.json.
//
// Decoding supports every tokenizer: tokens.bin contains the bytes of every id. Encoding supports bytes and GPT-2's
// byte-level byte-pair encoding (with its own vocabulary or with one that prepare.py trains). For other tokenizers
// can_encode() is false.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace teon {

class Tokenizer {
public:
    // Throws UsageError naming the file and the fault.
    explicit Tokenizer(const std::string& folder);

    int vocab_size() const { return static_cast<int>(bytes_.size()); }
    int delimiter() const { return delimiter_; }  // the token between documents; -1: not known
    bool can_encode() const { return cannot_encode_.empty(); }
    const std::string& cannot_encode() const { return cannot_encode_; }  // the reason, in a few words

    // Adds no delimiter; text that spells a special token stays text. Throws UsageError unless can_encode().
    std::vector<int> encode(std::string_view text) const;

    // The bytes of a token, which may be part of a character. Empty for ids outside the vocabulary.
    std::string_view bytes(int token) const;
    std::string decode(std::span<const int> tokens) const;

private:
    struct Merge {
        int rank, token;
    };
    void read_token_bytes(const std::string& path);
    void read_vocab_bpe(const std::string& path);
    void read_tokenizer_json(const std::string& path, bool decode_too);
    void read_tokens(const nlohmann::json& file, const std::string& path);
    void add_merge(const std::string& pair, const std::string& path);  // "left right"
    void add_merge(const std::string& left, const std::string& right, const std::string& path);
    void number_bytes();
    void encode_word(std::string_view word, std::vector<int>& out) const;

    std::vector<std::string> bytes_;
    int delimiter_ = -1;
    std::string cannot_encode_;
    std::vector<int> byte_token_;                    // the token of each byte value
    std::unordered_map<std::string, int> token_of_;  // by bytes; only while reading
    std::unordered_map<uint64_t, Merge> merges_;     // by left << 32 | right
};

}  // namespace teon
