// Integers: division that rounds up, multiples, and hashing.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace teon {

// Return n / d rounded up, and n rounded up to a multiple of `to`. n >= 0, d > 0, to > 0.
template <typename N, typename D>
TEON_HD constexpr auto ceil_div(N n, D d) {
    return (n + d - 1) / d;
}
template <typename N, typename M>
TEON_HD constexpr auto round_up(N n, M to) {
    return ceil_div(n, to) * to;
}

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). mix64() is its finalizer, in which every input bit affects every
// output bit. splitmix64() advances the state and returns the next random number.
constexpr uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
constexpr uint64_t splitmix64(uint64_t& state) { return mix64(state += 0x9e3779b97f4a7c15u); }

}  // namespace teon
