// Identifies the text that runs are validated on. Runs with different tokenizers are compared only if their text is the
// same (scripts/compare.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace teon {

// White space is left out, because tokenizers may add a blank before a text. Two tokenizers cut the text's end at
// different bytes, hence the hashes of its beginnings: of 8 to 32 times a power of two bytes, so that two texts of
// about one length have a common one of more than nine tenths of it.
struct TextIdentity {
    int64_t bytes = 0;                                        // without white space
    std::vector<std::pair<int64_t, std::string>> beginnings;  // size and hash, by size
};

// Returns the identity of the text from the first token of the shards to the end of the first `windows` windows of T
// tokens (data/loader.h, unshuffled). Reads tokens.bin in the folder `tokenizer`; returns nullopt if there is none.
std::optional<TextIdentity> text_identity(const DataSet& data, const std::string& tokenizer, int T, int64_t windows);

}  // namespace teon
