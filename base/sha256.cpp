#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace teon {

namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (section 4.2.2).
constexpr uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;  // a to h

void compress_block(State& state, const uint8_t* block) {
    uint32_t w[64];
    for (int t = 0; t < 16; ++t)
        w[t] = uint32_t{block[4 * t]} << 24 | uint32_t{block[4 * t + 1]} << 16 | uint32_t{block[4 * t + 2]} << 8 |
               uint32_t{block[4 * t + 3]};
    for (int t = 16; t < 64; ++t) {
        const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
        const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int t = 0; t < 64; ++t) {
        const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
        const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + K[t] + w[t];
        const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
        const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    const uint32_t next[8] = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += next[i];
}

#if defined(__x86_64__)

bool has_sha_instructions() {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA) != 0;
}

// The instructions hold the state as two vectors, a and c in their highest elements. sha256rnds2 makes two rounds: the
// old (a, b, e, f) becomes (c, d, g, h). sha256msg1 and msg2 make the next four words from the last sixteen.
__attribute__((target("sha,sse4.1"))) void compress_by_instructions(State& state, const uint8_t* blocks, size_t count) {
    const auto [a, b, c, d, e, f, g, h] = std::bit_cast<std::array<int, 8>>(state);
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const auto load = [](const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); };
    __m128i abef = _mm_set_epi32(a, b, e, f);
    __m128i cdgh = _mm_set_epi32(c, d, g, h);
    for (; count > 0; --count, blocks += 64) {
        const __m128i abef_before = abef;
        const __m128i cdgh_before = cdgh;
        __m128i w[16];  // words 4 t to 4 t + 3
#pragma GCC unroll 16
        for (int t = 0; t < 16; ++t) {
            w[t] = t < 4 ? _mm_shuffle_epi8(load(blocks + 16 * t), big_endian)
                         : _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[t - 4], w[t - 3]),
                                                              _mm_alignr_epi8(w[t - 1], w[t - 2], 4)),
                                                w[t - 1]);
            const __m128i sums = _mm_add_epi32(w[t], load(K + 4 * t));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sums);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sums, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const auto [f1, e1, b1, a1] = std::bit_cast<std::array<uint32_t, 4>>(abef);
    const auto [h1, g1, d1, c1] = std::bit_cast<std::array<uint32_t, 4>>(cdgh);
    state = {a1, b1, c1, d1, e1, f1, g1, h1};
}

#endif

void compress(State& state, const uint8_t* blocks, size_t count, [[maybe_unused]] bool uses_instructions) {
#if defined(__x86_64__)
    static const bool has_instructions = has_sha_instructions();
    if (uses_instructions && has_instructions) return compress_by_instructions(state, blocks, count);
#endif
    for (size_t i = 0; i < count; ++i) compress_block(state, blocks + 64 * i);
}

}  // namespace

void Sha256::update(const void* data, size_t bytes) {
    const uint8_t* p = static_cast<const uint8_t*>(data);
    while (bytes > 0) {
        const size_t held = bytes_ % 64;
        size_t n = std::min(bytes, 64 - held);
        if (n == 64) {
            n = bytes / 64 * 64;
            compress(state_, p, n / 64, uses_instructions_);
        } else {
            std::memcpy(block_.data() + held, p, n);
            if (held + n == 64) compress(state_, block_.data(), 1, uses_instructions_);
        }
        p += n;
        bytes -= n;
        bytes_ += n;
    }
}

std::array<uint8_t, 32> Sha256::digest() {
    const uint64_t bits = 8 * bytes_;
    const uint8_t one = 0x80;
    const uint8_t zero = 0;
    update(&one, 1);
    while (bytes_ % 64 != 56) update(&zero, 1);
    uint8_t length[8];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    update(length, 8);
    std::array<uint8_t, 32> bytes;
    for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return bytes;
}

std::string Sha256::hex_digest() {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (const uint8_t byte : digest()) {
        text += kDigits[byte / 16];
        text += kDigits[byte % 16];
    }
    return text;
}

}  // namespace teon
