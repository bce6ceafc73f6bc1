// Causal self-attention on tensor cores, tile by tile, so that scores never leave registers (Dao et al. 2022,
// https://arxiv.org/abs/2205.14135; Dao 2023, https://arxiv.org/abs/2307.08691). With c = log2(e) / sqrt(HS), S = Q K^T
// and lse2 = log2(e) lse:
//
//   forward    one block per tile of queries, over the tiles of keys that it sees. Running maximum m and sum l per row:
//              m' = max(m, c max S),  P = 2^(c S - m'),  l = 2^(m - m') l + rowsum P,  O = 2^(m - m') O + P V;
//              in the end O / l and lse = ln(2) m + ln(l)
//   backward   P = 2^(c S - lse2),  dP = dO V^T,  D = rowsum(dO * O),  dS = P * (dP - D),
//              dV = P^T dO,  dK = dS^T Q / sqrt(HS)   one block per tile of keys, over the queries that see it
//              dQ = dS K / sqrt(HS)                   one block per tile of queries
//
// S and dP are computed twice in the backward pass. The alternative, one pass that adds dQ up in global memory, needs
// either float atomics, whose order is not fixed, or blocks that wait for each other. The pass for dK and dV computes the
// transposed S^T = K Q^T, so that P^T and dS^T are left in registers in the very places where the products dV and dK want
// their left operand.
//
// Q, K and V are read from the packed layout and O, dQ, dK, dV written to theirs; query heads that share a key/value head
// are added up inside of one block, in order. While one tile is multiplied, cp_async fetches the next; one barrier per tile
// both publishes the next tile and frees the one before. Tiles that no row sees are never read: keys beyond the diagonal,
// and documents that ended before or begin after (doc_start does not decrease, so that the first row of a tile has the
// smallest one).
//
// Four warps per block, each with 16 or 32 rows of the tile that stays. 32 rows use every fragment of the passing tiles
// twice, which halves the traffic from shared memory, the narrower road on sm_80 and sm_90; where HS = 128 leaves no
// registers for that, it is 16. Tile sizes are such that two blocks fit on a multiprocessor: 64 KiB of shared memory and
// 255 registers, see `make check-cuda`.
#include <cmath>

#include "kernels/flash_tile.h"
#include "kernels/ops.h"
#include "runtime/math.h"

namespace teon {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
constexpr int kBlocksPerMultiprocessor = 2;

// What every kernel is told.
template <int HS>
struct FlashShape {
    int T, NH, NKV;
    float scale, scale_log2;        // 1 / sqrt(HS), and times log2(e)
    int64_t packed_row, plain_row;  // elements of a row of (NH + 2 NKV) and of NH heads
    const int* doc_start;           // (B, T) or nullptr

    FlashShape(const AttentionShape& s, const int* doc_start)
        : T(s.T),
          NH(s.NH),
          NKV(s.NKV),
          scale(1.0f / std::sqrt(static_cast<float>(HS))),
          scale_log2(scale * kLog2E),
          packed_row(s.qkv_width()),
          plain_row(static_cast<int64_t>(s.NH) * HS),
          doc_start(doc_start) {}

    __device__ __forceinline__ int group() const { return NH / NKV; }
    // Row t of one head of sequence b in a tensor like qkv, and in one like out.
    template <typename T_>
    __device__ __forceinline__ T_* packed(T_* x, int b, int t, int head) const {
        return x + (static_cast<int64_t>(b) * T + t) * packed_row + head * HS;
    }
    template <typename T_>
    __device__ __forceinline__ T_* plain(T_* x, int b, int t, int head) const {
        return x + (static_cast<int64_t>(b) * T + t) * plain_row + head * HS;
    }
    // Row t of one head in lse or in the rows' statistics.
    __device__ __forceinline__ int64_t row(int b, int head, int t) const {
        return (static_cast<int64_t>(b) * NH + head) * T + t;
    }
    // The first key that row t of sequence b sees.
    __device__ __forceinline__ int first_key(int b, int t) const {
        return doc_start ? doc_start[static_cast<int64_t>(b) * T + t] : 0;
    }
};

// What the backward passes need of a query row: log2(e) lse and D.
using RowStats = Vec<float, 2>;

// The 16 M query rows of one warp, beginning with row `first` of sequence b. Lane l holds parts of the rows
// first + 16 m + 8 half + l / 4.
template <int M, int HS>
struct QueryRows {
    const FlashShape<HS>& s;
    int b, first, last;
    int first_key, last_first_key;  // of the first and the last row

    __device__ __forceinline__ QueryRows(const FlashShape<HS>& s, int b, int first)
        : s(s), b(b), first(first), last(first + 16 * M - 1) {
        first_key = first < s.T ? s.first_key(b, first) : 0;
        last_first_key = s.first_key(b, last < s.T ? last : s.T - 1);
    }
    __device__ __forceinline__ int row(int m, int half) const {
        return first + 16 * m + 8 * half + lane_of_thread() / 4;
    }
    // Whether any row sees any of the keys [begin, end), and whether all see all.
    __device__ bool see_any(int begin, int end) const { return begin <= last && end > first_key; }
    __device__ bool see_all(int begin, int end) const { return end - 1 <= first && begin >= last_first_key; }
};

// The key that element i of the n-th fragment of a product has as its column; and the query in the transposed product.
__device__ __forceinline__ int column_of(int n, int i) { return 8 * n + lane_of_thread() % 4 * 2 + i % 2; }

// Sets to `value` what stands for a key that its row does not see. Columns begin with `key`.
template <int M, int N, typename Rows>
__device__ __forceinline__ void mask(float (&x)[M][N][4], const Rows& rows, int key, float value) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int last = rows.row(m, half), first = last < rows.s.T ? rows.s.first_key(rows.b, last) : 0;
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    const int column = key + column_of(n, i);
                    if (column < first || column > last) x[m][n][i] = value;
                }
            }
        }
    }
}

// ---- forward ---------------------------------------------------------------------------------------------------------

template <int HS>
struct ForwardTiles {
    static constexpr int kQueries = 128, kKeys = HS == 64 ? 64 : 32;
    static constexpr int M = kQueries / (16 * kFlashWarps), N = kKeys / 8, C = HS / 8;
    static constexpr bool kHold = HS == 64;
    using Query = FlashTile<kQueries, HS>;
    using Key = FlashTile<kKeys, HS>;
    static constexpr size_t kBytes = (Query::kElements + 4 * Key::kElements) * sizeof(bf16);
};

// Scores of one tile of keys become P; m, l and O are brought up to date.
template <int M, int N, int C, typename Rows>
__device__ __forceinline__ void softmax_step(float (&s)[M][N][4], float (&out)[M][C][4], float (&top)[M][2],
                                             float (&sum)[M][2], const Rows& rows, int key, float scale_log2) {
    if (!rows.see_all(key, key + 8 * N)) mask(s, rows, key, -kInfinity);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float largest = -kInfinity;
#pragma unroll
            for (int n = 0; n < N; n++) largest = fmaxf(largest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            const float before = top[m][half], after = fmaxf(before, flash_row_max(largest) * scale_log2);
            const float base = after == -kInfinity ? 0.0f : after;  // a row that has not seen a key yet
            const float shrink = exp2_fast(before - base);
            top[m][half] = after;
            float total = 0.0f;
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[m][n][i] = exp2_fast(fmaf(s[m][n][i], scale_log2, -base));
                    total += s[m][n][i];
                }
            }
            sum[m][half] = sum[m][half] * shrink + total;
#pragma unroll
            for (int c = 0; c < C; c++) {
                out[m][c][2 * half] *= shrink;
                out[m][c][2 * half + 1] *= shrink;
            }
        }
    }
}

template <int HS>
__global__ void __launch_bounds__(kFlashThreads, kBlocksPerMultiprocessor)
    flash_attention_forward_kernel(bf16* out, float* lse, const bf16* qkv, FlashShape<HS> s) {
    using Tiles = ForwardTiles<HS>;
    constexpr int M = Tiles::M, N = Tiles::N, C = Tiles::C, kKeys = Tiles::kKeys;
    DYN_SHARED(bf16, shared);
    const typename Tiles::Query Q{shared}, warp_Q = Q.from(16 * M * warp_of_thread());
    auto keys = [&](int stage) { return typename Tiles::Key{shared + Q.kElements + 2 * stage * Tiles::Key::kElements}; };
    auto values = [&](int stage) { return typename Tiles::Key{keys(stage).memory + Tiles::Key::kElements}; };

    const int b = static_cast<int>(blockIdx.z), h = static_cast<int>(blockIdx.y);
    const int query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kQueries;  // those that see most come first
    const int end = query + Tiles::kQueries < s.T ? query + Tiles::kQueries : s.T;
    const int begin = s.first_key(b, query) / kKeys * kKeys;
    const QueryRows<M, HS> rows(s, b, query + 16 * M * warp_of_thread());

    const bf16* next = Tiles::Key::first_chunk(s.packed(qkv, b, begin, s.NH + h / s.group()), s.packed_row);
    auto fetch = [&](int key, int stage) {
        keys(stage).start_copy(next, s.packed_row, s.T - key);
        values(stage).start_copy(next + s.NKV * HS, s.packed_row, s.T - key);
        next += kKeys * s.packed_row;
    };
    Q.start_copy(Q.first_chunk(s.packed(qkv, b, query, h), s.packed_row), s.packed_row, s.T - query);
    fetch(begin, 0);
    flash_finish_copies();

    float o[M][C][4] = {}, top[M][2], sum[M][2] = {};
#pragma unroll
    for (int m = 0; m < M; m++) top[m][0] = top[m][1] = -kInfinity;
    FlashOperand<M, HS / 16, Tiles::kHold> q;
    q.hold(warp_Q);

    for (int key = begin, stage = 0; key < end; key += kKeys, stage ^= 1) {
        if (key + kKeys < end) fetch(key + kKeys, stage ^ 1);
        if (rows.see_any(key, key + kKeys)) {
            float scores[M][N][4] = {};
            flash_multiply<M, N, HS / 16>(
                scores, [&](auto& a, int m, int k) { q.get(a, warp_Q, m, k); },
                [&](auto& k2, int n, int k) { keys(stage).load_b_of_rows(k2, 16 * n, k); });
            softmax_step(scores, o, top, sum, rows, key, s.scale_log2);
            flash_multiply<M, C, kKeys / 16>(
                o, [&](auto& a, int m, int k) { flash_pack_a(a, scores[m], k); },
                [&](auto& v2, int n, int k) { values(stage).load_b(v2, 16 * k, n); });
        }
        flash_finish_copies();
    }

#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float total = flash_row_sum(sum[m][half]), normalize = total == 0.0f ? 0.0f : 1.0f / total;
            const int t = rows.row(m, half);
            if (lane_of_thread() % 4 == 0 && t < s.T) {
                lse[s.row(b, h, t)] = top[m][half] * kLn2 + logf(total);
            }
#pragma unroll
            for (int c = 0; c < C; c++) {
                o[m][c][2 * half] *= normalize;
                o[m][c][2 * half + 1] *= normalize;
            }
        }
    }
    warp_Q.store(s.plain(out, b, rows.first, h), s.plain_row, s.T - rows.first, o);
}

// ---- backward --------------------------------------------------------------------------------------------------------

// stats (B, NH, T): each row's log2(e) lse and D. HS / 8 threads share a row.
template <int HS>
__global__ void flash_attention_stats_kernel(RowStats* stats, const bf16* dout, const bf16* out, const float* lse,
                                             int64_t rows, FlashShape<HS> s) {
    constexpr int kLanes = HS / 8;
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, row = thread / kLanes;
    float D = 0.0f;
    if (row < rows) {
        const auto dy = load_vec<8>(dout + thread * 8), y = load_vec<8>(out + thread * 8);
        FOR_VEC(i, 8) D += static_cast<float>(dy[i]) * static_cast<float>(y[i]);
    }
#pragma unroll
    for (int bit = kLanes / 2; bit > 0; bit /= 2) D += __shfl_xor_sync(0xffffffffu, D, bit);
    if (row < rows && thread % kLanes == 0) {
        const int64_t bt = row / s.NH, at = (bt / s.T * s.NH + row % s.NH) * s.T + bt % s.T;
        stats[at] = RowStats{{lse[at] * kLog2E, D}};
    }
}

template <int HS>
struct QueryGradientTiles {
    static constexpr int kQueries = HS == 64 ? 128 : 64, kKeys = 32;
    static constexpr int M = kQueries / (16 * kFlashWarps), N = kKeys / 8, C = HS / 8;
    using Query = FlashTile<kQueries, HS>;
    using Key = FlashTile<kKeys, HS>;
    static constexpr size_t kBytes = (2 * Query::kElements + 4 * Key::kElements) * sizeof(bf16);
};

template <int HS>
__global__ void __launch_bounds__(kFlashThreads, kBlocksPerMultiprocessor)
    flash_attention_query_gradient_kernel(bf16* dqkv, const bf16* dout, const bf16* qkv, const RowStats* stats,
                                          FlashShape<HS> s) {
    using Tiles = QueryGradientTiles<HS>;
    constexpr int M = Tiles::M, N = Tiles::N, C = Tiles::C, kKeys = Tiles::kKeys;
    DYN_SHARED(bf16, shared);
    const typename Tiles::Query Q{shared}, dO{shared + Q.kElements};
    const typename Tiles::Query warp_Q = Q.from(16 * M * warp_of_thread()), warp_dO = dO.from(16 * M * warp_of_thread());
    auto keys = [&](int stage) {
        return typename Tiles::Key{shared + 2 * Q.kElements + 2 * stage * Tiles::Key::kElements};
    };
    auto values = [&](int stage) { return typename Tiles::Key{keys(stage).memory + Tiles::Key::kElements}; };

    const int b = static_cast<int>(blockIdx.z), h = static_cast<int>(blockIdx.y);
    const int query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kQueries;
    const int end = query + Tiles::kQueries < s.T ? query + Tiles::kQueries : s.T;
    const int begin = s.first_key(b, query) / kKeys * kKeys;
    const QueryRows<M, HS> rows(s, b, query + 16 * M * warp_of_thread());

    const bf16* next = Tiles::Key::first_chunk(s.packed(qkv, b, begin, s.NH + h / s.group()), s.packed_row);
    auto fetch = [&](int key, int stage) {
        keys(stage).start_copy(next, s.packed_row, s.T - key);
        values(stage).start_copy(next + s.NKV * HS, s.packed_row, s.T - key);
        next += kKeys * s.packed_row;
    };
    Q.start_copy(Q.first_chunk(s.packed(qkv, b, query, h), s.packed_row), s.packed_row, s.T - query);
    dO.start_copy(dO.first_chunk(s.plain(dout, b, query, h), s.plain_row), s.plain_row, s.T - query);
    fetch(begin, 0);
    flash_finish_copies();

    RowStats of_row[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = rows.row(m, half);
            of_row[m][half] = t < s.T ? stats[s.row(b, h, t)] : RowStats{};
        }
    }
    float dq[M][C][4] = {};
    FlashOperand<M, HS / 16, true> q, dy;
    q.hold(warp_Q);
    dy.hold(warp_dO);

    for (int key = begin, stage = 0; key < end; key += kKeys, stage ^= 1) {
        if (key + kKeys < end) fetch(key + kKeys, stage ^ 1);
        if (rows.see_any(key, key + kKeys)) {
            float p[M][N][4] = {}, ds[M][N][4] = {};
            flash_multiply<M, N, HS / 16, HS / 16>(
                p, [&](auto& a, int m, int k) { q.get(a, warp_Q, m, k); },
                [&](auto& k2, int n, int k) { keys(stage).load_b_of_rows(k2, 16 * n, k); });
            flash_multiply<M, N, HS / 16, HS / 16>(
                ds, [&](auto& a, int m, int k) { dy.get(a, warp_dO, m, k); },
                [&](auto& v2, int n, int k) { values(stage).load_b_of_rows(v2, 16 * n, k); });
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int n = 0; n < N; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const RowStats& r = of_row[m][i / 2];
                        ds[m][n][i] = exp2_fast(fmaf(p[m][n][i], s.scale_log2, -r[0])) * (ds[m][n][i] - r[1]);
                    }
                }
            }
            if (!rows.see_all(key, key + kKeys)) mask(ds, rows, key, 0.0f);
            flash_multiply<M, C, kKeys / 16>(
                dq, [&](auto& a, int m, int k) { flash_pack_a(a, ds[m], k); },
                [&](auto& k2, int n, int k) { keys(stage).load_b(k2, 16 * k, n); });
        }
        flash_finish_copies();
    }

    flash_scale(dq, s.scale);
    warp_Q.store(s.packed(dqkv, b, rows.first, h), s.packed_row, s.T - rows.first, dq);
}

template <int HS>
struct KeyGradientTiles {
    static constexpr int kKeys = HS == 64 ? 128 : 64, kQueries = 32;
    static constexpr int M = kKeys / (16 * kFlashWarps), N = kQueries / 8, C = HS / 8;
    using Key = FlashTile<kKeys, HS>;
    using Query = FlashTile<kQueries, HS>;
    // Per stage, behind the tiles: statistics and first keys of the queries.
    static constexpr size_t kRowBytes = kQueries * (sizeof(RowStats) + sizeof(int));
    static constexpr size_t kTileBytes = (2 * Key::kElements + 4 * Query::kElements) * sizeof(bf16);
    static constexpr size_t kBytes = kTileBytes + 2 * kRowBytes;
};

// One past the last row that belongs to the document of row t: where doc_start first exceeds t.
__device__ inline int document_end(const int* documents, int t, int T) {
    int low = t + 1, high = T;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (documents[middle] > t) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// Calls f(x, stats) for each score of a transposed product, whose columns are queries.
template <int M, int N, typename F>
__device__ __forceinline__ void for_columns(float (&x)[M][N][4], const RowStats* rows, F f) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        const auto pair = load_vec<2>(rows + column_of(n, 0));
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) f(x[m][n][i], pair[i % 2]);
        }
    }
}

// 0 for the keys, from `key` on, that a query, from `query` on, does not see; first: the first key that each sees.
template <int M, int N>
__device__ __forceinline__ void mask_transposed(float (&x)[M][N][4], int key, int query, const int* first) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int column = column_of(n, i), lowest = first ? first[column] : 0;
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int k = key + 16 * m + 8 * half + lane_of_thread() / 4;
                    if (k < lowest || k > query + column) x[m][n][2 * half + i] = 0.0f;
                }
            }
        }
    }
}

template <int HS>
__global__ void __launch_bounds__(kFlashThreads, kBlocksPerMultiprocessor)
    flash_attention_key_gradient_kernel(bf16* dqkv, const bf16* dout, const bf16* qkv, const RowStats* stats,
                                        FlashShape<HS> s) {
    using Tiles = KeyGradientTiles<HS>;
    constexpr int M = Tiles::M, N = Tiles::N, C = Tiles::C, kQueries = Tiles::kQueries;
    DYN_SHARED(bf16, shared);
    const typename Tiles::Key K{shared}, V{shared + K.kElements};
    const typename Tiles::Key warp_K = K.from(16 * M * warp_of_thread()), warp_V = V.from(16 * M * warp_of_thread());
    auto queries = [&](int stage) {
        return typename Tiles::Query{shared + 2 * K.kElements + 2 * stage * Tiles::Query::kElements};
    };
    auto douts = [&](int stage) { return typename Tiles::Query{queries(stage).memory + Tiles::Query::kElements}; };
    auto row_stats = [&](int stage) {
        return reinterpret_cast<RowStats*>(shared + Tiles::kTileBytes / sizeof(bf16)) + stage * kQueries;
    };
    auto first_keys = [&](int stage) { return reinterpret_cast<int*>(row_stats(2)) + stage * kQueries; };

    const int b = static_cast<int>(blockIdx.z), kv = static_cast<int>(blockIdx.y);
    const int key = static_cast<int>(blockIdx.x) * Tiles::kKeys;  // in order: the first are seen by most
    const int* documents = s.doc_start ? s.doc_start + static_cast<int64_t>(b) * s.T : nullptr;
    const int last_key = key + Tiles::kKeys < s.T ? key + Tiles::kKeys - 1 : s.T - 1;
    const int begin = key / kQueries * kQueries;
    const int end = documents ? document_end(documents, last_key, s.T) : s.T;
    const int warp_first = key + 16 * M * warp_of_thread(), warp_last = warp_first + 16 * M - 1;

    auto fetch = [&](int head, int query, int stage) {
        const int thread = static_cast<int>(threadIdx.x), t = query + thread;
        queries(stage).start_copy(Tiles::Query::first_chunk(s.packed(qkv, b, query, head), s.packed_row), s.packed_row,
                                  s.T - query);
        douts(stage).start_copy(Tiles::Query::first_chunk(s.plain(dout, b, query, head), s.plain_row),
                                s.plain_row, s.T - query);
        if (thread < kQueries) {
            const RowStats* from = stats + s.row(b, head, 0);
            cp_async<8>(row_stats(stage) + thread, t < s.T ? from + t : from, t < s.T);
            if (documents) cp_async<4>(first_keys(stage) + thread, t < s.T ? documents + t : documents, t < s.T);
        }
    };
    const bf16* k = K.first_chunk(s.packed(qkv, b, key, s.NH + kv), s.packed_row);
    K.start_copy(k, s.packed_row, s.T - key);
    V.start_copy(k + s.NKV * HS, s.packed_row, s.T - key);
    fetch(kv * s.group(), begin, 0);
    flash_finish_copies();

    // Rows beyond T have 0 for Q, dO, D and lse2, and add 0 * P and Q * 0.
    float dk[M][C][4] = {}, dv[M][C][4] = {};
    for (int head = kv * s.group(), query = begin, stage = 0; head < (kv + 1) * s.group(); stage ^= 1) {
        const bool last_of_head = query + kQueries >= end;
        const int next_head = last_of_head ? head + 1 : head, next_query = last_of_head ? begin : query + kQueries;
        if (next_head < (kv + 1) * s.group()) fetch(next_head, next_query, stage ^ 1);

        const RowStats* rows = row_stats(stage);
        const int* first = first_keys(stage);
        const int last_query = query + kQueries < s.T ? query + kQueries - 1 : s.T - 1;
        const int lowest = documents ? first[0] : 0, highest = documents ? first[last_query - query] : 0;
        if (last_query >= warp_first && lowest <= warp_last) {
            float p[M][N][4] = {};
            flash_multiply<M, N, HS / 16>(
                p, [&](auto& a, int m, int k) { warp_K.load_a(a, 16 * m, k); },
                [&](auto& q2, int n, int k) { queries(stage).load_b_of_rows(q2, 16 * n, k); });
            for_columns<M, N>(p, rows, [&](float& x, const RowStats& r) {
                x = exp2_fast(fmaf(x, s.scale_log2, -r[0]));
            });
            if (query < warp_last || highest > warp_first)
                mask_transposed(p, warp_first, query, documents ? first : nullptr);
            flash_multiply<M, C, kQueries / 16>(
                dv, [&](auto& a, int m, int k) { flash_pack_a(a, p[m], k); },
                [&](auto& dy2, int n, int k) { douts(stage).load_b(dy2, 16 * k, n); });

            float dp[M][N][4] = {};
            flash_multiply<M, N, HS / 16>(
                dp, [&](auto& a, int m, int k) { warp_V.load_a(a, 16 * m, k); },
                [&](auto& dy2, int n, int k) { douts(stage).load_b_of_rows(dy2, 16 * n, k); });
            for_columns<M, N>(dp, rows, [&](float& x, const RowStats& r) { x -= r[1]; });
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int n = 0; n < N; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) p[m][n][i] *= dp[m][n][i];
                }
            }
            flash_multiply<M, C, kQueries / 16>(
                dk, [&](auto& a, int m, int k) { flash_pack_a(a, p[m], k); },
                [&](auto& q2, int n, int k) { queries(stage).load_b(q2, 16 * k, n); });
        }
        flash_finish_copies();
        head = next_head, query = next_query;
    }

    flash_scale(dk, s.scale);
    bf16* dk_rows = s.packed(dqkv, b, warp_first, s.NH + kv);
    warp_K.store(dk_rows, s.packed_row, s.T - warp_first, dk);
    warp_V.store(dk_rows + s.NKV * HS, s.packed_row, s.T - warp_first, dv);
}

// ---- launchers -------------------------------------------------------------------------------------------------------

int tiles(int T, int size) { return (T + size - 1) / size; }

// Calls f(HS) with the head size as a constant, after it has been found that the kernels can work.
template <typename F>
void for_head_size(const AttentionShape& s, std::initializer_list<const void*> pointers, F f) {
    CHECK(flash_attention_supports(s, DType::bf16),
          "flash attention: B={} T={} NH={} NKV={} HS={}, expected a head size of 64 or 128, NH a multiple of NKV, and "
          "B and NH at most 65535",
          s.B, s.T, s.NH, s.NKV, s.HS);
    for (const void* p : pointers)
        CHECK(reinterpret_cast<uintptr_t>(p) % 16 == 0, "flash attention: a tensor is not 16-byte aligned");
    if (s.HS == 64) {
        f(std::integral_constant<int, 64>{});
    } else {
        f(std::integral_constant<int, 128>{});
    }
}

}  // namespace

bool flash_attention_supports(const AttentionShape& s, DType dtype) {
    constexpr int kMaxGrid = 65535;
    return dtype == DType::bf16 && (s.HS == 64 || s.HS == 128) && s.B >= 1 && s.B <= kMaxGrid && s.T >= 1 && s.NKV >= 1 &&
           s.NH >= 1 && s.NH <= kMaxGrid && s.NH % s.NKV == 0;
}

bool flash_attention_is_fast() { return kTensorCores; }

size_t flash_attention_scratch_bytes(const AttentionShape& s) {
    return static_cast<size_t>(s.B) * s.NH * s.T * sizeof(RowStats);
}

void flash_attention_forward(bf16* out, float* lse, const bf16* qkv, const int* doc_start, const AttentionShape& s,
                             const Stream& stream) {
    for_head_size(s, {out, qkv}, [&](auto head_size) {
        constexpr int HS = decltype(head_size)::value;
        using Tiles = ForwardTiles<HS>;
        launch<flash_attention_forward_kernel<HS>>(
            {dim3(tiles(s.T, Tiles::kQueries), s.NH, s.B), kFlashThreads, Tiles::kBytes}, stream, out, lse, qkv,
            FlashShape<HS>(s, doc_start));
    });
}

void flash_attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                              const float* lse, const int* doc_start, const AttentionShape& s, const Stream& stream) {
    for_head_size(s, {dqkv, scratch, dout, qkv, out}, [&](auto head_size) {
        constexpr int HS = decltype(head_size)::value;
        using QueryTiles = QueryGradientTiles<HS>;
        using KeyTiles = KeyGradientTiles<HS>;
        const FlashShape<HS> shape(s, doc_start);
        RowStats* stats = static_cast<RowStats*>(scratch);
        const int64_t rows = static_cast<int64_t>(s.B) * s.T * s.NH;
        constexpr int kStatsThreads = 256, kRowsPerBlock = kStatsThreads / (HS / 8);
        launch<flash_attention_stats_kernel<HS>>({(rows + kRowsPerBlock - 1) / kRowsPerBlock, kStatsThreads}, stream,
                                                 stats, dout, out, lse, rows, shape);
        launch<flash_attention_key_gradient_kernel<HS>>(
            {dim3(tiles(s.T, KeyTiles::kKeys), s.NKV, s.B), kFlashThreads, KeyTiles::kBytes}, stream, dqkv, dout, qkv,
            stats, shape);
        launch<flash_attention_query_gradient_kernel<HS>>(
            {dim3(tiles(s.T, QueryTiles::kQueries), s.NH, s.B), kFlashThreads, QueryTiles::kBytes}, stream, dqkv, dout,
            qkv, stats, shape);
    });
}

}  // namespace teon
