// Philox4x32-10, a counter-based random number generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011): 128 random bits as a function of a 128-bit counter and a 64-bit key. It has no state, so that any thread
// can generate any number.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace teon {

struct PhiloxCounter {
    uint32_t v[4];
};
struct PhiloxKey {
    uint32_t v[2];
};

TEON_HD PhiloxCounter philox4x32_10(PhiloxCounter c, PhiloxKey key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * c.v[0];
        const uint64_t b = uint64_t{0xCD9E8D57u} * c.v[2];
        c = {{static_cast<uint32_t>(b >> 32) ^ c.v[1] ^ key.v[0], static_cast<uint32_t>(b),
              static_cast<uint32_t>(a >> 32) ^ c.v[3] ^ key.v[1], static_cast<uint32_t>(a)}};
        key.v[0] += 0x9E3779B9u;
        key.v[1] += 0xBB67AE85u;
    }
    return c;
}

// The midpoint of one of 2^23 equal parts of (0, 1), which is exactly representable: never 0, whose logarithm is
// infinite, nor 1.
TEON_HD float uniform_of(uint32_t bits) { return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f; }

}  // namespace teon
