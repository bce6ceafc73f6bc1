// Writes token shards for tests as the format's description says, independently of the reader's code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "test/support/temp_dir.h"

namespace teon::test {

struct ShardHeader {
    int32_t word[256] = {};
    ShardHeader(int bytes_per_token, int32_t tokens) {
        word[0] = bytes_per_token == 2 ? 20240520 : 20240801;
        word[1] = bytes_per_token == 2 ? 1 : 7;
        word[2] = tokens;
    }
};
static_assert(sizeof(ShardHeader) == 1024);

template <typename Bytes>
std::string bytes_of(const Bytes* data, size_t n) {
    return std::string(reinterpret_cast<const char*>(data), n * sizeof(Bytes));
}

// Returns the bytes of a shard with these tokens.
inline std::string shard_bytes(const std::vector<uint32_t>& tokens, int bytes_per_token) {
    ShardHeader header(bytes_per_token, static_cast<int32_t>(tokens.size()));
    std::string bytes = bytes_of(&header, 1);
    if (bytes_per_token == 4) return bytes + bytes_of(tokens.data(), tokens.size());
    std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
    return bytes + bytes_of(narrow.data(), narrow.size());
}

inline void write_shard(const std::string& path, const std::vector<uint32_t>& tokens, int bytes_per_token = 2) {
    write_file(path, shard_bytes(tokens, bytes_per_token));
}

}  // namespace teon::test
