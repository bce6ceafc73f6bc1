// SHA-256 (FIPS 180-4), for the digests of files that scripts/prepare.py writes. Uses the SHA instructions of x86 where
// the CPU has them (about seven times as fast).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace teon {

class Sha256 {
public:
    // uses_instructions: false for the portable code on every CPU.
    explicit Sha256(bool uses_instructions = true) : uses_instructions_(uses_instructions) {}
    void update(const void* data, size_t bytes);
    std::array<uint8_t, 32> digest();  // of all data; the object cannot be used afterwards
    std::string hex_digest();          // likewise, in hexadecimal

private:
    bool uses_instructions_;
    std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<uint8_t, 64> block_ = {};
    uint64_t bytes_ = 0;
};

}  // namespace teon
