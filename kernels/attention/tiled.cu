// Causal self-attention in tiles that stay in a core's second-level cache (FlashAttention: Dao et al. 2022,
// https://arxiv.org/abs/2205.14135; the order of the loops is that of Dao 2023, https://arxiv.org/abs/2307.08691).
// With S = Q K^T, P = exp(S / sqrt(HS) - lse), and M the mask of dropout over 1 - p, or 1:
//
//   forward    one task for some rows of a query head. For each tile of keys: the maximum m of the row so far, the sum
//              of exp(S / sqrt(HS) - m), and O += exp(..) M V; what was summed before is multiplied by exp(m' - m).
//   backward   one task for a key/value head. For each tile of keys, each query head and each tile of queries:
//              dP = M dO V^T,  dS = P (dP - D) / sqrt(HS) with D = rowsum(dO * O),
//              dV += (P M)^T dO,  dK += dS^T Q,  dQ += dS K
//              S^T and dP^T are computed, so that the statistics of rows are vectors beside each row of a tile.
//
// The sizes of tiles, and so the order of sums, depend on T alone: bits depend neither on the number of threads nor on
// B. A tile that no row sees is skipped, because it would only add zeros. Products are those of runtime/linalg/tiles.h:
// S and dP float, P and dS rounded to T.
#include <algorithm>
#include <cmath>
#include <memory>

#include "base/math.h"
#include "kernels/attention/parts.h"
#include "kernels/attention/tiled.h"
#include "kernels/dropout_row.h"
#include "runtime/linalg/tiles.h"

namespace teon {

namespace {

constexpr int W = kScoreWidth;

// The largest tiles. One that crosses the diagonal is computed whole, so that short sequences have smaller ones.
int forward_rows(int T) { return std::min(round_up(T, W), T <= 512 ? 64 : 128); }
int forward_keys(int T) { return std::min(round_up(T, W), 256); }
int backward_keys(int T) { return std::min(round_up(T, W), T <= 512 ? 64 : 128); }
int backward_rows(int T) { return std::min(round_up(T, W), T <= 512 ? 128 : 256); }

template <typename T>
struct ForwardMemory {
    float *scores, *out, *maximum, *sum;
    T* probs;  // scores if T is float
    size_t bytes;

    ForwardMemory(void* base, const AttentionShape& s) {
        Pieces<64> pieces(base);
        const int64_t rows = forward_rows(s.T);
        scores = pieces.take<float>(rows * forward_keys(s.T));
        out = pieces.take<float>(rows * s.HS);
        maximum = pieces.take<float>(rows);
        sum = pieces.take<float>(rows);
        probs = pieces.take_rounded<T>(scores, rows * forward_keys(s.T));
        bytes = pieces.bytes();
    }
};

template <typename T>
struct BackwardMemory {
    float *scores, *dprobs;  // (keys, queries)
    float *dK, *dV;          // (keys, HS)
    float* dQ;               // (query heads of a key/value head, T, HS)
    float *lse, *D;          // (query heads of a key/value head, T); D over sqrt(HS)
    int* first;              // (T): the first visible key
    T *probs, *dscores;      // scores and dprobs if T is float
    size_t bytes;

    BackwardMemory(void* base, const AttentionShape& s) {
        Pieces<64> pieces(base);
        const int64_t keys = backward_keys(s.T);
        const int64_t tile = keys * backward_rows(s.T);
        const int64_t rows = static_cast<int64_t>(s.NH / s.NKV) * round_up(s.T, W);
        scores = pieces.take<float>(tile);
        dprobs = pieces.take<float>(tile);
        dK = pieces.take<float>(keys * s.HS);
        dV = pieces.take<float>(keys * s.HS);
        dQ = pieces.take<float>(rows * s.HS);
        lse = pieces.take<float>(rows);
        D = pieces.take<float>(rows);
        first = pieces.take<int>(round_up(s.T, W));
        probs = pieces.take_rounded<T>(scores, tile);
        dscores = pieces.take_rounded<T>(dprobs, tile);
        bytes = pieces.bytes();
    }
};

template <typename T>
size_t slot_bytes(const AttentionShape& s) {
    return round_up(std::max(ForwardMemory<T>(nullptr, s).bytes, BackwardMemory<T>(nullptr, s).bytes), size_t{4096});
}

template <typename T>
void* slot_memory(void* scratch, int slot, const AttentionShape& s) {
    return static_cast<std::byte*>(scratch) + static_cast<size_t>(slot) * slot_bytes<T>(s);
}

template <typename T>
void round_row(T* to, const float* from, int n, float factor = 1.0f) {
#pragma GCC ivdep
    for (int c = 0; c < n; ++c) to[c] = T(from[c] * factor);
}

// ---- forward --------------------------------------------------------------------------------------------------------

struct ForwardProducts {
    TileProduct scores, first_values, later_values;
};

template <typename T>
struct Forward {
    T* out;
    float* lse;
    void* scratch;
    const T* qkv;
    const int* first_key;
    AttentionShape s;
    DropoutMask dropout;
    int rows = forward_rows(s.T), keys = forward_keys(s.T);  // of the largest tile
    int blocks = ceil_div(s.T, rows);                        // of rows
    float scale = 1.0f / std::sqrt(static_cast<float>(s.HS));
    std::shared_ptr<const ProductsBySize<ForwardProducts>> products = make_products();

    std::shared_ptr<const ProductsBySize<ForwardProducts>> make_products() const {
        auto all = std::make_shared<ProductsBySize<ForwardProducts>>();
        const DType type = dtype_of<T>;
        const int64_t width = s.qkv_width();
        const auto make = [&](int M, int N) {
            return ForwardProducts{{type, M, N, s.HS, {width}, {width, true}, keys, false},
                                   {type, M, s.HS, N, {keys}, {width}, s.HS, false},
                                   {type, M, s.HS, N, {keys}, {width}, s.HS, true}};
        };
        for (int begin = 0; begin < s.T; begin += rows)
            for (int key = 0, end = std::min(begin + rows, s.T); key < end; key += keys)
                all->add(end - begin, std::min(keys, end - key), make);
        return all;
    }

    int first_key_of(int b, int t) const { return first_key ? first_key[static_cast<int64_t>(b) * s.T + t] : 0; }

    // The last rows of a head, which see the most keys, come first.
    void operator()(int64_t task, int slot) const {
        const int head = static_cast<int>(task / blocks);
        const int begin = (blocks - 1 - static_cast<int>(task % blocks)) * rows;
        run(head / s.NH, head % s.NH, begin, std::min(begin + rows, s.T), {slot_memory<T>(scratch, slot, s), s});
    }

    // The rows [begin, end) of query head h of sequence b.
    void run(int b, int h, int begin, int end, const ForwardMemory<T>& m) const {
        const int kv = h / (s.NH / s.NKV);
        const T* Q = qkv + s.in_qkv(b, begin, h);
        int lowest = begin;  // of the rows' first keys
        int highest = 0;
        for (int t = begin; t < end; ++t) {
            lowest = std::min(lowest, first_key_of(b, t));
            highest = std::max(highest, first_key_of(b, t));
        }
        std::fill(m.maximum, m.maximum + (end - begin), -kAttentionInfinity);
        std::fill(m.sum, m.sum + (end - begin), 0.0f);
        const int first = lowest / keys * keys;
        for (int key = first; key < end; key += keys) {
            const int count = std::min(keys, end - key);
            const ForwardProducts& p = products->of(end - begin, count);
            p.scores(m.scores, Q, qkv + s.in_qkv(b, key, s.NH + kv));
            const bool masked = key + count - 1 > begin || highest > key || count % W != 0;
            const auto softmax = [&]<bool MASKED, bool DROPS>() {
                for (int t = begin; t < end; ++t) softmax_row<MASKED, DROPS>(b, h, t, t - begin, key, count, m);
            };
            at_conditions(softmax, masked, dropout.p > 0);
            (key == first ? p.first_values : p.later_values)(m.out, m.probs, qkv + s.in_qkv(b, key, s.NH + s.NKV + kv));
        }
        for (int t = begin; t < end; ++t) {
            const int i = t - begin;
            round_row(out + s.in_out(b, t, h), m.out + static_cast<int64_t>(i) * s.HS, s.HS, 1.0f / m.sum[i]);
            lse[(static_cast<int64_t>(b) * s.NH + h) * s.T + t] = m.maximum[i] * scale + logf(m.sum[i]);
        }
    }

    // Row i of a tile, which is row t of the sequence, and the tile's `count` keys from `key` on: replaces scores by
    // exponentials and updates the row's maximum, its sum and what its output holds so far. A NaN among the visible
    // scores makes the sum NaN.
    template <bool MASKED, bool DROPS>
    void softmax_row(int b, int h, int t, int i, int key, int count, const ForwardMemory<T>& m) const {
        float* x = m.scores + static_cast<int64_t>(i) * keys;
        T* y = m.probs + static_cast<int64_t>(i) * keys;
        const int first = MASKED ? first_key_of(b, t) - key : 0;
        const int last = MASKED ? t - key : count - 1;
        const auto visible = [&](int j) { return !MASKED || (first <= j && j <= last); };
        Vec<float, W> partial;
        FOR_VEC(k, W) partial[k] = -kAttentionInfinity;
        for (int j = 0; j < count; j += W) {
            const auto v = load_vec<W>(x + j);
            FOR_VEC(k, W) partial[k] = visible(j + k) && v[k] > partial[k] ? v[k] : partial[k];
        }
        const float before = m.maximum[i];
        const float maximum = std::max(before, largest_of(partial));
        partial = {};
        for (int j = 0; j < count; j += W) {
            auto v = load_vec<W>(x + j);
            FOR_VEC(k, W) {
                v[k] = exp_fast((v[k] - maximum) * scale);
                v[k] = visible(j + k) ? v[k] : 0.0f;
                partial[k] += v[k];
            }
            if constexpr (DROPS) {
                const auto factor = DropoutRow(dropout, b, h * s.T + t).template factors<W>(key + j);
                FOR_VEC(k, W) v[k] *= factor[k];
            }
            store_floats(y + j, v);
        }
        m.maximum[i] = maximum;
        const float sum = sum_of(partial);
        if (maximum == before || before == -kAttentionInfinity) {
            m.sum[i] += sum;
            return;
        }
        const float factor = exp_fast((before - maximum) * scale);
        m.sum[i] = fmaf(m.sum[i], factor, sum);
        float* row = m.out + static_cast<int64_t>(i) * s.HS;
        round_row(row, row, s.HS, factor);
    }
};

// ---- backward -------------------------------------------------------------------------------------------------------

struct BackwardProducts {
    TileProduct scores, dprobs, dV, dK, dQ;
};

template <typename T>
struct Backward {
    T* dqkv;
    void* scratch;
    const T* dout;
    const T* qkv;
    const T* out;
    const float* lse;
    const int* first_key;
    AttentionShape s;
    DropoutMask dropout;
    int rows = backward_rows(s.T), keys = backward_keys(s.T);  // of the largest tile
    int group = s.NH / s.NKV;
    int stride = round_up(s.T, W);  // rows of a head in BackwardMemory
    float scale = 1.0f / std::sqrt(static_cast<float>(s.HS));
    std::shared_ptr<const ProductsBySize<BackwardProducts>> products = make_products();

    std::shared_ptr<const ProductsBySize<BackwardProducts>> make_products() const {
        auto all = std::make_shared<ProductsBySize<BackwardProducts>>();
        const DType type = dtype_of<T>;
        const int64_t width = s.qkv_width();
        const int64_t out_width = s.out_width();
        const auto make = [&](int M, int N) {
            return BackwardProducts{{type, M, N, s.HS, {width}, {width, true}, rows, false},
                                    {type, M, N, s.HS, {width}, {out_width, true}, rows, false},
                                    {type, M, s.HS, N, {rows}, {out_width}, s.HS, true},
                                    {type, M, s.HS, N, {rows}, {width}, s.HS, true},
                                    {type, N, s.HS, M, {rows, true}, {width}, s.HS, true}};
        };
        for (int key = 0; key < s.T; key += keys)
            for (int begin = key; begin < s.T; begin += rows)
                all->add(std::min(keys, s.T - key), std::min(rows, s.T - begin), make);
        return all;
    }

    void operator()(int64_t task, int slot) const {
        const int b = static_cast<int>(task / s.NKV);
        const int kv = static_cast<int>(task % s.NKV);
        const BackwardMemory<T> m(slot_memory<T>(scratch, slot, s), s);
        prepare(b, kv, m);
        for (int key = 0; key < s.T; key += keys) run(b, kv, key, std::min(keys, s.T - key), m);
        for (int g = 0; g < group; ++g)
            for (int t = 0; t < s.T; ++t)
                round_row(dqkv + s.in_qkv(b, t, kv * group + g), m.dQ + row_of(g, t) * s.HS, s.HS);
    }

    int64_t row_of(int g, int t) const { return static_cast<int64_t>(g) * stride + t; }

    // Computes D, and copies what tiles read W elements at a time.
    void prepare(int b, int kv, const BackwardMemory<T>& m) const {
        for (int t = 0; t < s.T; ++t) m.first[t] = first_key ? first_key[static_cast<int64_t>(b) * s.T + t] : 0;
        std::fill(m.dQ, m.dQ + row_of(group, 0) * s.HS, 0.0f);
        for (int g = 0; g < group; ++g) {
            const int h = kv * group + g;
            std::copy_n(lse + (static_cast<int64_t>(b) * s.NH + h) * s.T, s.T, m.lse + row_of(g, 0));
            for (int t = 0; t < s.T; ++t) {
                const int64_t row = s.in_out(b, t, h);
                m.D[row_of(g, t)] = scale * sum_of(partial_dot(dout + row, out + row, s.HS, 0, W));
            }
        }
    }

    // The keys [key, key + count) of key/value head kv of sequence b.
    void run(int b, int kv, int key, int count, const BackwardMemory<T>& m) const {
        const T* K = qkv + s.in_qkv(b, key, s.NH + kv);
        const T* V = qkv + s.in_qkv(b, key, s.NH + s.NKV + kv);
        std::fill(m.dK, m.dK + static_cast<int64_t>(count) * s.HS, 0.0f);
        std::fill(m.dV, m.dV + static_cast<int64_t>(count) * s.HS, 0.0f);
        for (int g = 0; g < group; ++g) {
            const int h = kv * group + g;
            for (int begin = key; begin < s.T; begin += rows) {
                const int end = std::min(begin + rows, s.T);
                const auto [first, last] = std::minmax_element(m.first + begin, m.first + end);
                if (*first >= key + count) continue;
                const T* Q = qkv + s.in_qkv(b, begin, h);
                const T* dO = dout + s.in_out(b, begin, h);
                const BackwardProducts& p = products->of(count, end - begin);
                p.scores(m.scores, K, Q);
                p.dprobs(m.dprobs, V, dO);
                const bool masked = key + count - 1 > begin || *last > key;
                const auto scores = [&]<bool MASKED, bool DROPS>() {
                    differentiate<MASKED, DROPS>(b, g, h, key, count, begin, end, m);
                };
                at_conditions(scores, masked, dropout.p > 0);
                p.dV(m.dV, m.probs, dO);
                p.dK(m.dK, m.dscores, Q);
                p.dQ(m.dQ + row_of(g, begin) * s.HS, m.dscores, K);
            }
        }
        for (int i = 0; i < count; ++i) {
            round_row(dqkv + s.in_qkv(b, key + i, s.NH + kv), m.dK + static_cast<int64_t>(i) * s.HS, s.HS);
            round_row(dqkv + s.in_qkv(b, key + i, s.NH + s.NKV + kv), m.dV + static_cast<int64_t>(i) * s.HS, s.HS);
        }
    }

    // Replaces scores and dprobs by probs and dscores, for the queries [begin, end). With dropout it takes four keys at
    // a time, because one random number decides about four.
    template <bool MASKED, bool DROPS>
    void differentiate(int b, int g, int h, int key, int count, int begin, int end, const BackwardMemory<T>& m) const {
        constexpr int kKeys = DROPS ? 4 : 1;
        for (int i = 0; i < count; i += kKeys) {
            const int64_t n_keys = std::min(kKeys, count - i);
            float* const scores = m.scores + static_cast<int64_t>(i) * rows;
            // Rounds S / sqrt(HS), as the forward pass has rounded it in the lse of a row that sees one key: P is then
            // exactly 1. A fused multiplication and subtraction would not round it.
            if constexpr (MASKED)
                for (int64_t j = 0; j < n_keys * rows; ++j) scores[j] *= scale;
            for (int j = 0; j < end - begin; j += W) {
                [[maybe_unused]] float factors[kKeys][W];
                if constexpr (DROPS) {
                    for (int k = 0; k < W; ++k) {
                        const auto f = DropoutRow(dropout, b, h * s.T + begin + j + k).template factors<kKeys>(key + i);
                        for (int n = 0; n < kKeys; ++n) factors[n][k] = f[n];
                    }
                }
                for (int n = 0; n < n_keys; ++n)
                    differentiate_vec<MASKED, DROPS>(i + n, j, key + i + n, begin + j, row_of(g, begin + j), factors[n],
                                                     m);
            }
        }
    }

    // Element (i, j) of a tile and those after it, for key `key` and the queries from t on.
    template <bool MASKED, bool DROPS>
    void differentiate_vec(int i, int j, int key, int t, int64_t row, const float* factors,
                           const BackwardMemory<T>& m) const {
        const int64_t at = static_cast<int64_t>(i) * rows + j;
        auto x = load_vec<W>(m.scores + at);
        auto dp = load_vec<W>(m.dprobs + at);
        const auto row_lse = load_vec<W>(m.lse + row);
        const auto D = load_vec<W>(m.D + row);
        const auto first = load_vec<W>(m.first + t);
        Vec<float, W> p;
        Vec<float, W> ds;
        FOR_VEC(k, W) {
            const float factor = DROPS ? factors[k] : 1.0f;
            const float e = exp_fast((MASKED ? x[k] : x[k] * scale) - row_lse[k]);
            const float d = e * (dp[k] * factor * scale - D[k]);
            const bool visible = !MASKED || (first[k] <= key && key <= t + k);
            p[k] = visible ? e * factor : 0.0f;
            ds[k] = visible ? d : 0.0f;
        }
        store_floats(m.probs + at, p);
        store_floats(m.dscores + at, ds);
    }
};

}  // namespace

template <typename T>
size_t attention_tiled_scratch_bytes(const AttentionShape& s) {
    return static_cast<size_t>(task_slots()) * slot_bytes<T>(s);
}

template <typename T>
void attention_tiled_forward(T* out, float* lse, void* scratch, const T* qkv, const int* first_key,
                             const AttentionShape& s, Context& context, const DropoutMask& dropout) {
    const Forward<T> work{out, lse, scratch, qkv, first_key, s, dropout};
    run_tasks(context.stream, "attention_tiled_forward", static_cast<int64_t>(s.B) * s.NH * work.blocks, work);
}

template <typename T>
void attention_tiled_backward(T* dqkv, void* scratch, const T* dout, const T* qkv, const T* out, const float* lse,
                              const int* first_key, const AttentionShape& s, Context& context,
                              const DropoutMask& dropout) {
    const Backward<T> work{dqkv, scratch, dout, qkv, out, lse, first_key, s, dropout};
    run_tasks(context.stream, "attention_tiled_backward", static_cast<int64_t>(s.B) * s.NKV, work);
}

FOR_STORAGE_TYPES(attention_tiled_scratch_bytes);
FOR_STORAGE_TYPES(attention_tiled_forward);
FOR_STORAGE_TYPES(attention_tiled_backward);

}  // namespace teon
