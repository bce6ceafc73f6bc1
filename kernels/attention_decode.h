// Attention of one token per sequence to a cache of keys and values. Conventions: kernels/ops.h.
#pragma once

#include "kernels/attention.h"
#include "runtime/device.h"

namespace teon {

// A cache of keys and values holds `capacity` rows of each sequence: (B, capacity, 2 NKV HS), row t = token t's key
// heads, then its value heads. Rows [begin, begin + s.T) of each sequence = those of packed qkv (B, s.T, (NH + 2 NKV)
// HS).
template <typename T>
void cache_append(T* cache, const T* qkv, const AttentionShape& s, int begin, int capacity, const Stream& stream);
// out (B, NH * HS) = attention of one query row per sequence, of packed qkv (B, (NH + 2 NKV) * HS), to the first `keys`
// rows of the cache, its own included. s.T must be 1.
template <typename T>
void attention_decode(T* out, const T* qkv, const T* cache, const AttentionShape& s, int keys, int capacity,
                      const Stream& stream);

}  // namespace teon
