// The dimensions of attention.
#pragma once

#include <cstdint>

namespace teon {

// Causal self-attention. Head h of the NH query heads uses key/value head h / (NH / NKV). Scores are scaled by
// 1 / sqrt(HS). first_key (B, T), or nullptr for 0 everywhere: row t sees the keys t' with first_key[t] <= t' <= t. It
// is all that documents and windows (first_key.h) are to attention.
struct AttentionShape {
    int B, T, NH, NKV, HS;
    int64_t qkv_width() const { return static_cast<int64_t>(NH + 2 * NKV) * HS; }
    int64_t out_width() const { return static_cast<int64_t>(NH) * HS; }
    // The first element of row t of a head of sequence b, in qkv and in the output.
    int64_t in_qkv(int b, int t, int head) const { return (static_cast<int64_t>(b) * T + t) * qkv_width() + head * HS; }
    int64_t in_out(int b, int t, int head) const { return (static_cast<int64_t>(b) * T + t) * out_width() + head * HS; }
};

}  // namespace teon
