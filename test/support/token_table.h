// Writes a tokenizer's tokens.bin for tests as the format's description says, independently of the reader's code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace teon::test {

inline std::string token_table(int version, const std::vector<std::string>& tokens, int delimiter,
                               bool added_blank = false) {
    const int32_t header[256] = {20240328, version, static_cast<int32_t>(tokens.size()), delimiter, added_blank};
    std::string table(reinterpret_cast<const char*>(header), sizeof header);
    std::string bytes;
    for (const std::string& token : tokens) {
        const auto length = static_cast<uint32_t>(token.size());
        if (version == 2) bytes += static_cast<char>(length);
        if (version == 3) table.append(reinterpret_cast<const char*>(&length), sizeof length);
        bytes += token;
    }
    return table + bytes;
}

inline std::vector<std::string> single_bytes() {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, static_cast<char>(byte)));
    return tokens;
}

}  // namespace teon::test
