// Tokens to text and back, for a tokenizer folder that scripts/prepare.py writes beside shards or for a published
// model's folder with tokenizer.json or tokenizer.model.
//
// tokens.bin in prepare.py's folder has the bytes of every id, so decoding needs no library. The library, which
// scripts/encode_text.py asks, encodes text; it also gives the bytes of a published tokenizer's ids.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/script.h"

namespace teon {

class Tokenizer {
public:
    // Throws UsageError naming the file and the fault.
    explicit Tokenizer(const std::string& folder);

    // Whether the folder has a tokenizer's files.
    static bool is_in(const std::string& folder);

    int vocab_size() const { return static_cast<int>(bytes_.size()); }
    int delimiter() const { return delimiter_; }  // the token between documents; -1: not known

    // Adds no delimiter; text that spells a special token stays text. Throws UsageError if the tokenizer's library is
    // missing or cannot encode the text.
    std::vector<int> encode(std::string_view text) const;

    // The bytes of a token, which may be part of a character. Empty for ids outside the vocabulary. begins_text:
    // whether the token is the first of a text, where SentencePiece adds a blank that is not the text's.
    std::string_view bytes(int token, bool begins_text = false) const;

    // The text that these tokens begin; another text begins after each delimiter.
    std::string decode(std::span<const int> tokens) const;

private:
    void read_token_bytes(const std::string& file, const std::string& path);
    // Asks the script, which stays open. An Error names what works without it.
    Json ask(const Json& request, const char* key, const char* without) const;

    std::string folder_;
    std::vector<std::string> bytes_;
    int delimiter_ = -1;
    bool adds_first_blank_ = false;
    mutable std::unique_ptr<Script> script_;  // from the first question on
};

}  // namespace teon
