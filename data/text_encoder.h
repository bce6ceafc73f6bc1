// Text to tokens, by the tokenizer's own library: scripts/encode_text.py, which stays open, answers for it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "files/line_server.h"

namespace teon {

class TextEncoder {
public:
    // Starts the script for a tokenizer's folder: one that scripts/prepare.py made, or a published model's. Throws
    // Error if Python or the script is missing.
    explicit TextEncoder(const std::string& folder);

    // Adds no delimiter; text that spells a special token stays text. Throws UsageError if the library is missing,
    // refuses the folder or cannot encode the text.
    std::vector<int> encode(std::string_view text);

    // Returns the content of a tokens.bin (docs/data.md) of the tokenizer. Throws like encode().
    std::string tokens_bin();

private:
    std::string folder_;
    LineServer server_;
};

}  // namespace teon
