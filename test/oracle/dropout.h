// The mask of dropout, from its definition in kernels/dropout_mask.h, with Philox4x32-10 as in Salmon et al. (SC 2011):
// the words of the counter are (L0, R0, L1, R1), and each round multiplies two of them.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace teon::test {

inline std::array<uint32_t, 4> philox_oracle(std::array<uint32_t, 4> x, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t product0 = uint64_t{x[0]} * 0xD2511F53u;
        const uint64_t product1 = uint64_t{x[2]} * 0xCD9E8D57u;
        x = {uint32_t(product1 >> 32) ^ x[1] ^ k0, uint32_t(product1), uint32_t(product0 >> 32) ^ x[3] ^ k1,
             uint32_t(product0)};
    }
    return x;
}

// 0 or 1 / (1 - p).
inline double dropout_factor(double p, uint64_t seed, uint32_t site, uint64_t sample, uint32_t row, uint32_t column) {
    const std::array<uint32_t, 4> words =
        philox_oracle({site * 262144 + column / 4, row, uint32_t(sample % 4294967296), uint32_t(sample / 4294967296)},
                      uint32_t(seed % 4294967296), uint32_t(seed / 4294967296) ^ 0x64726f70u);
    return words[column % 4] < std::floor(p * 4294967296.0) ? 0.0 : 1 / (1 - p);
}

}  // namespace teon::test
