// Arithmetic of bf16 and f16, and of pairs of them ("Half Precision Floating Point Instructions").
#pragma once

#include <bit>
#include <cstdint>

#include "gpusim/float16.h"
#include "gpusim/program.h"

namespace teon::gpusim {

// Conversions to float, which are exact, and from it, to nearest even; NaN becomes 0x7fff.
struct HalfBf16 {
    static float widen(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }
    static uint16_t narrow(float x) {
        const uint32_t u = std::bit_cast<uint32_t>(x);
        if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
        return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1)) >> 16);
    }
};
struct HalfF16 {
    static float widen(uint16_t x) { return static_cast<float>(std::bit_cast<Float16>(x)); }
    static uint16_t narrow(float x) {
        return x != x ? uint16_t{0x7fff} : std::bit_cast<uint16_t>(static_cast<Float16>(x));
    }
};

void add_half_rows(Table& table);

}  // namespace teon::gpusim
