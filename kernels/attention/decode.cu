// Attention of one query row per sequence to a cache of keys and values, which is computed for each token of a
// generated text.
//
// One block per sequence and query head. A thread processes whole keys, so that a score is one thread's dot product and
// nothing is reduced before the softmax. The scores are then in shared memory, and the threads are assigned to the
// columns of the values and, if there are more threads than vectors in a row, also to parts of the keys. A long cache
// is processed in tiles of kTileKeys; if a tile raises the maximum, the earlier sums are scaled down (as in flash
// attention).
#include <algorithm>
#include <cmath>

#include "base/integer.h"
#include "base/math.h"
#include "kernels/attention/decode.h"
#include "kernels/common.h"

namespace teon {

namespace {

constexpr int kDecodeBlock = kRowsByThread ? 32 : 256;
constexpr int kTileKeys = 8192;  // their scores are 32 KiB of shared memory

struct DecodeShape {
    int64_t query_row, cache_row, cache_sequence;  // strides in elements
    int NH, NKV, HS, keys;
};

// The assignment of the block's threads to the columns of the values: splits * vectors threads work, each on the keys
// split, split + splits, ...
template <int W>
struct ValueThreads {
    int vectors, splits;
    TEON_HD explicit ValueThreads(int HS)
        : vectors(HS / W), splits(kDecodeBlock / vectors > 0 ? kDecodeBlock / vectors : 1) {}
};

// Two blocks on a multiprocessor: by default, ptxas limits registers to fit four on sm_80, and spills.
template <typename T, int W>
__global__ void __launch_bounds__(kDecodeBlock, 2)
    attention_decode_kernel(T* out, const T* qkv, const T* cache, DecodeShape s, float scale) {
    wait_for_earlier_kernels();
    DYN_SHARED(float, probs);                                                       // one tile of keys
    float* partial = probs + round_up(s.keys < kTileKeys ? s.keys : kTileKeys, W);  // splits x HS
    const int b = static_cast<int>(blockIdx.x) / s.NH;
    const int h = static_cast<int>(blockIdx.x) % s.NH;
    const int thread = static_cast<int>(threadIdx.x);
    const T* query = qkv + b * s.query_row + int64_t{h} * s.HS;
    const T* key = cache + b * s.cache_sequence + int64_t{h / (s.NH / s.NKV)} * s.HS;
    const T* value = key + int64_t{s.NKV} * s.HS;

    const ValueThreads<W> threads(s.HS);
    float maximum = -__builtin_huge_valf();
    float sum = 0.0f;
    for (int begin = 0; begin < s.keys; begin += kTileKeys) {
        const int keys = s.keys - begin < kTileKeys ? s.keys - begin : kTileKeys;
        float larger = maximum;
        for (int j = thread; j < keys; j += kDecodeBlock) {
            Vec<float, W> dot{};
            for (int c = 0; c < s.HS; c += W) {
                const auto q = load_floats<W>(query + c);
                const auto k = load_floats<W>(key + (begin + j) * s.cache_row + c);
                FOR_VEC(i, W) dot[i] += q[i] * k[i];
            }
            const float score = sum_of(dot) * scale;
            probs[j] = score;
            larger = score > larger ? score : larger;
        }
        larger = block_max(larger);
        const float correction = begin == 0 ? 0.0f : exp_fast(maximum - larger);
        maximum = larger;
        float tile_sum = 0.0f;
        for (int j = thread; j < keys; j += kDecodeBlock) tile_sum += probs[j] = exp_fast(probs[j] - maximum);
        sum = sum * correction + block_sum(tile_sum);  // whose barriers also make other threads' probs visible

        for (int item = thread; item < threads.splits * threads.vectors; item += kDecodeBlock) {
            const int split = item / threads.vectors;
            const int c = item % threads.vectors * W;
            Vec<float, W> total{};
            for (int j = split; j < keys; j += threads.splits) {
                const auto v = load_floats<W>(value + (begin + j) * s.cache_row + c);
                FOR_VEC(i, W) total[i] += probs[j] * v[i];
            }
            float* const before = partial + split * s.HS + c;  // only this thread accesses it in the loop
            if (begin > 0) {
                const auto earlier = load_vec<W>(before);
                FOR_VEC(i, W) total[i] += earlier[i] * correction;
            }
            store_vec(before, total);
        }
        __syncthreads();  // before the next tile's probs are written and before `partial` is read
    }
    const float normalize = 1.0f / sum;
    for (int c = thread; c < s.HS; c += kDecodeBlock) {
        float total = 0.0f;
        for (int split = 0; split < threads.splits; ++split) total += partial[split * s.HS + c];
        out[(int64_t{b} * s.NH + h) * s.HS + c] = static_cast<T>(total * normalize);
    }
}

// Row begin + t of each sequence in the cache (`row` elements) = the last `row` elements of row t of qkv.
template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock) cache_append_kernel(T* cache, const T* qkv, int64_t n, int row, int T_new,
                                                                  int64_t width, int64_t begin, int64_t capacity) {
    wait_for_earlier_kernels();
    for_each_vec<W>(n, [=]<int w>(Constant<w>, int64_t i) {
        const int64_t b_t = i / row;
        const int64_t c = i % row;
        const int64_t b = b_t / T_new;
        const int64_t t = b_t % T_new;
        store_vec(cache + (b * capacity + begin + t) * row + c, load_vec<w>(qkv + b_t * width + (width - row) + c));
    });
}

void check_decode(const AttentionShape& s, int keys, int capacity) {
    CHECK(s.B >= 1 && s.NKV >= 1 && s.HS >= 1 && s.NH % s.NKV == 0, "attention_decode: B={} NH={} NKV={} HS={}", s.B,
          s.NH, s.NKV, s.HS);
    CHECK(keys >= 1 && keys <= capacity, "attention_decode: {} keys in a cache of {}", keys, capacity);
}

}  // namespace

template <typename T>
void cache_append(T* cache, const T* qkv, const AttentionShape& s, int begin, int capacity, const Stream& stream) {
    check_decode(s, begin + s.T, capacity);
    const int row = 2 * s.NKV * s.HS;
    const int64_t n = static_cast<int64_t>(s.B) * s.T * row;
    constexpr int W = kVecWidth<T>;
    at_width<W>(vec_aligned<T, W>(row, cache, qkv) && s.qkv_width() % W == 0, [&]<int W>(Constant<W>) {
        launch<cache_append_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, cache, qkv, n, row, s.T,
                                          s.qkv_width(), begin, capacity);
    });
}

template <typename T>
void attention_decode(T* out, const T* qkv, const T* cache, const AttentionShape& s, int first, int keys, int capacity,
                      const Stream& stream) {
    check_decode(s, keys, capacity);
    CHECK(0 <= first && first < keys, "attention_decode: keys from {} to {}", first, keys);
    CHECK(s.T == 1, "attention_decode: {} query rows per sequence; it takes one", s.T);
    const int64_t cache_row = int64_t{2} * s.NKV * s.HS;
    const int seen = keys - first;
    const DecodeShape shape{s.qkv_width(), cache_row, capacity * cache_row, s.NH, s.NKV, s.HS, seen};
    // Partial sums are vectors of W floats, so that W is at most kVecWidth<float>.
    constexpr int W = kVecWidth<float> < kVecWidth<T> ? kVecWidth<float> : kVecWidth<T>;
    at_width<W>(vec_aligned<T, W>(s.HS, qkv, cache), [&]<int W>(Constant<W>) {
        const size_t shared =
            (static_cast<size_t>(round_up(std::min(seen, kTileKeys), W)) + ValueThreads<W>(s.HS).splits * s.HS) *
            sizeof(float);
        launch<attention_decode_kernel<T, W>>({s.B * s.NH, kDecodeBlock, shared}, stream, out, qkv,
                                              cache + first * cache_row, shape,
                                              1.0f / std::sqrt(static_cast<float>(s.HS)));
    });
}

FOR_STORAGE_TYPES(cache_append);
FOR_STORAGE_TYPES(attention_decode);

}  // namespace teon
