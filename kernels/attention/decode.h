// Attention of one token per sequence to a cache of keys and values, for generation. Conventions: kernels/ops.h.
#pragma once

#include "kernels/attention/attention.h"
#include "runtime/cuda/device.h"

namespace teon {

// A cache of keys and values is (B, capacity, 2 NKV HS): row t of a sequence has the key heads of token t, then its
// value heads. cache_append copies the keys and values of packed qkv (B, s.T, (NH + 2 NKV) HS) to rows [begin, begin +
// s.T) of each sequence. Throws Error if they do not fit.
template <typename T>
void cache_append(T* cache, const T* qkv, const AttentionShape& s, int begin, int capacity, const Stream& stream);
// out (B, NH * HS) = attention of one query row per sequence, from packed qkv (B, (NH + 2 NKV) * HS), to the rows
// [first, keys) of the cache, of which the last is its own. Throws Error unless s.T = 1 and 0 <= first < keys <=
// capacity.
template <typename T>
void attention_decode(T* out, const T* qkv, const T* cache, const AttentionShape& s, int first, int keys, int capacity,
                      const Stream& stream);

}  // namespace teon
