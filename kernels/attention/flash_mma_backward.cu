// The backward pass of flash attention with mma. flash_mma.cu describes the method.
#include "kernels/attention/flash_mma_backward.h"

#include "base/integer.h"
#include "kernels/attention/flash_backward.h"

namespace teon {

namespace {

template <int HS>
struct QueryGradientTiles {
    static constexpr int kQueries = HS == 64 ? 128 : 64;
    static constexpr int kKeys = 32;
    static constexpr int M = kQueries / (16 * kFlashWarps);
    static constexpr int N = kKeys / 8;
    static constexpr int C = HS / 8;
    using Query = FlashTile<kQueries, HS>;
    using Key = FlashTile<kKeys, HS>;
    static constexpr size_t kBytes = (2 * Query::kElements + 4 * Key::kElements) * sizeof(bf16);
};

template <int HS>
__global__ void __launch_bounds__(kFlashThreads, kFlashBlocks)
    flash_attention_query_gradient_kernel(bf16* dqkv, float* partial, const bf16* dout, const bf16* qkv,
                                          const RowStats* stats, FlashShape<HS> s) {
    wait_for_earlier_kernels();
    using Tiles = QueryGradientTiles<HS>;
    constexpr int M = Tiles::M;
    constexpr int N = Tiles::N;
    constexpr int C = Tiles::C;
    constexpr int kKeys = Tiles::kKeys;
    DYN_SHARED(bf16, shared);
    const typename Tiles::Query Q{shared};
    const typename Tiles::Query dO{shared + Q.kElements};
    const typename Tiles::Query warp_Q = Q.from(16 * M * warp_of_thread());
    const typename Tiles::Query warp_dO = dO.from(16 * M * warp_of_thread());
    auto keys = [&](int stage) {
        return typename Tiles::Key{shared + 2 * Q.kElements + 2 * stage * Tiles::Key::kElements};
    };
    auto values = [&](int stage) { return typename Tiles::Key{keys(stage).memory + Tiles::Key::kElements}; };

    const int b = static_cast<int>(blockIdx.z);
    const int h = static_cast<int>(blockIdx.y);
    const int query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kQueries;
    const int end = query + Tiles::kQueries < s.T ? query + Tiles::kQueries : s.T;
    const int begin = s.first_key_of(b, query) / kKeys * kKeys;
    const FlashRows<M, HS> rows(s, b, query + 16 * M * warp_of_thread());

    const bf16* next = Tiles::Key::first_chunk(s.packed(qkv, b, begin, s.NH + h / s.group), s.packed_row);
    auto fetch = [&](int key, int stage) {
        keys(stage).start_copy(next, s.packed_row, s.T - key);
        values(stage).start_copy(next + s.NKV * HS, s.packed_row, s.T - key);
        next += kKeys * s.packed_row;
    };
    Q.start_copy(Q.first_chunk(s.packed(qkv, b, query, h), s.packed_row), s.packed_row, s.T - query);
    dO.start_copy(dO.first_chunk(s.plain(dout, b, query, h), s.plain_row), s.plain_row, s.T - query);
    fetch(begin, 0);
    finish_copies();

    RowStats of_row[M][2];
    load_row_stats(of_row, stats, rows, h);
    float dq[M][C][4] = {};
    FlashOperand<M, HS / 16, true> q;
    FlashOperand<M, HS / 16, true> dy;
    q.hold(warp_Q);
    dy.hold(warp_dO);

    for (int key = begin, stage = 0; key < end; key += kKeys, stage ^= 1) {
        if (key + kKeys < end) fetch(key + kKeys, stage ^ 1);
        if (rows.see_any(key, key + kKeys)) {
            float p[M][N][4] = {};
            float ds[M][N][4] = {};
            tile_multiply<M, N, HS / 16, HS / 16>(
                p, [&](auto& a, int m, int k) { q.get(a, warp_Q, m, k); },
                [&](auto& k2, int n, int k) { keys(stage).load_b_of_rows(k2, 16 * n, k); });
            tile_multiply<M, N, HS / 16, HS / 16>(
                ds, [&](auto& a, int m, int k) { dy.get(a, warp_dO, m, k); },
                [&](auto& v2, int n, int k) { values(stage).load_b_of_rows(v2, 16 * n, k); });
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int n = 0; n < N; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const RowStats& r = of_row[m][i / 2];
                        ds[m][n][i] = exp2_fast(fmaf(p[m][n][i], s.scale_log2, -r[0])) * (ds[m][n][i] - r[1]);
                    }
                }
            }
            if (!rows.see_all(key, key + kKeys)) flash_mask(ds, rows, key, 0.0f);
            tile_multiply<M, C, kKeys / 16>(
                dq, [&](auto& a, int m, int k) { tile_pack_a(a, ds[m], k); },
                [&](auto& k2, int n, int k) { keys(stage).load_b(k2, 16 * k, n); });
        }
        finish_copies();
    }

    flash_scale(dq, s.scale);
    flash_column_sums(partial, s, b, rows.first, h, dq);
    warp_Q.store(s.packed(dqkv, b, rows.first, h), s.packed_row, s.T - rows.first, dq);
}

template <int HS>
struct KeyGradientTiles {
    static constexpr int kKeys = HS == 64 ? 128 : 64;
    static constexpr int kQueries = 32;
    static constexpr int M = kKeys / (16 * kFlashWarps);
    static constexpr int N = kQueries / 8;
    static constexpr int C = HS / 8;
    using Key = FlashTile<kKeys, HS>;
    using Query = FlashTile<kQueries, HS>;
    // After the tiles, per stage: statistics and first keys of the queries.
    static constexpr size_t kRowBytes = kQueries * (sizeof(RowStats) + sizeof(int));
    static constexpr size_t kTileBytes = (2 * Key::kElements + 4 * Query::kElements) * sizeof(bf16);
    static constexpr size_t kBytes = kTileBytes + 2 * kRowBytes;

    bf16* shared;
    __device__ __forceinline__ Key keys() const { return {shared}; }
    __device__ __forceinline__ Key values() const { return {shared + Key::kElements}; }
    __device__ __forceinline__ Query queries(int stage) const {
        return {shared + 2 * Key::kElements + 2 * stage * Query::kElements};
    }
    __device__ __forceinline__ Query douts(int stage) const { return {queries(stage).memory + Query::kElements}; }
    __device__ __forceinline__ RowStats* row_stats(int stage) const {
        return reinterpret_cast<RowStats*>(shared + kTileBytes / sizeof(bf16)) + stage * kQueries;
    }
    __device__ __forceinline__ int* first_keys(int stage) const {
        return reinterpret_cast<int*>(row_stats(2)) + stage * kQueries;
    }

    // Starts the copies of the queries of a head from `query` on. first_key: the first key that each row of the
    // sequence sees, or nullptr.
    __device__ __forceinline__ void fetch(int stage, const FlashShape<HS>& s, int b, int head, int query,
                                          const bf16* qkv, const bf16* dout, const RowStats* stats,
                                          const int* first_key) const {
        const int thread = static_cast<int>(threadIdx.x);
        const int t = query + thread;
        queries(stage).start_copy(Query::first_chunk(s.packed(qkv, b, query, head), s.packed_row), s.packed_row,
                                  s.T - query);
        douts(stage).start_copy(Query::first_chunk(s.plain(dout, b, query, head), s.plain_row), s.plain_row,
                                s.T - query);
        if (thread < kQueries) {
            const RowStats* from = stats + s.row(b, head, 0);
            cp_async<8>(row_stats(stage) + thread, t < s.T ? from + t : from, t < s.T);
            if (first_key) cp_async<4>(first_keys(stage) + thread, t < s.T ? first_key + t : first_key, t < s.T);
        }
    }
};

template <int HS>
__global__ void __launch_bounds__(kFlashThreads, kFlashBlocks)
    flash_attention_key_gradient_kernel(bf16* dqkv, float* partial, const bf16* dout, const bf16* qkv,
                                        const RowStats* stats, FlashShape<HS> s) {
    wait_for_earlier_kernels();
    using Tiles = KeyGradientTiles<HS>;
    constexpr int M = Tiles::M;
    constexpr int N = Tiles::N;
    DYN_SHARED(bf16, shared);
    const Tiles tiles{shared};
    const typename Tiles::Key K = tiles.keys();
    const typename Tiles::Key V = tiles.values();
    const typename Tiles::Key warp_K = K.from(16 * M * warp_of_thread());
    const typename Tiles::Key warp_V = V.from(16 * M * warp_of_thread());
    const int b = static_cast<int>(blockIdx.z);
    const int kv = static_cast<int>(blockIdx.y);
    const int key = static_cast<int>(blockIdx.x) * Tiles::kKeys;  // in order: the longest blocks start first
    const int* first_key = s.first_key ? s.first_key + static_cast<int64_t>(b) * s.T : nullptr;
    const int last_key = key + Tiles::kKeys < s.T ? key + Tiles::kKeys - 1 : s.T - 1;
    const int begin = key / Tiles::kQueries * Tiles::kQueries;
    const int end = first_key ? readers_end(first_key, last_key, s.T) : s.T;
    const int warp_first = key + 16 * M * warp_of_thread();
    const int warp_last = warp_first + 16 * M - 1;

    const bf16* k = K.first_chunk(s.packed(qkv, b, key, s.NH + kv), s.packed_row);
    K.start_copy(k, s.packed_row, s.T - key);
    V.start_copy(k + s.NKV * HS, s.packed_row, s.T - key);
    tiles.fetch(0, s, b, kv * s.group, begin, qkv, dout, stats, first_key);
    finish_copies();

    // Q, dO, D and lse2 are 0 in rows beyond T, which therefore add 0 to dK and dV.
    float dk[M][Tiles::C][4] = {};
    float dv[M][Tiles::C][4] = {};
    for (int head = kv * s.group, query = begin, stage = 0; head < (kv + 1) * s.group; stage ^= 1) {
        const bool last_of_head = query + Tiles::kQueries >= end;
        const int next_head = last_of_head ? head + 1 : head;
        const int next_query = last_of_head ? begin : query + Tiles::kQueries;
        if (next_head < (kv + 1) * s.group)
            tiles.fetch(stage ^ 1, s, b, next_head, next_query, qkv, dout, stats, first_key);

        const RowStats* rows = tiles.row_stats(stage);
        const int* first = tiles.first_keys(stage);
        const int last_query = query + Tiles::kQueries < s.T ? query + Tiles::kQueries - 1 : s.T - 1;
        const int lowest = first_key ? first[0] : 0;
        const int highest = first_key ? first[last_query - query] : 0;
        if (last_query >= warp_first && lowest <= warp_last) {
            float p[M][N][4] = {};
            tile_multiply<M, N, HS / 16>(
                p, [&](auto& a, int m, int k) { warp_K.load_a(a, 16 * m, k); },
                [&](auto& q2, int n, int k) { tiles.queries(stage).load_b_of_rows(q2, 16 * n, k); });
            for_columns(p, rows, [&](float& x, const RowStats& r) { x = exp2_fast(fmaf(x, s.scale_log2, -r[0])); });
            if (query < warp_last || highest > warp_first)
                mask_transposed(p, warp_first, query, first, first_key != nullptr);
            tile_multiply<M, Tiles::C, Tiles::kQueries / 16>(
                dv, [&](auto& a, int m, int k) { tile_pack_a(a, p[m], k); },
                [&](auto& dy2, int n, int k) { tiles.douts(stage).load_b(dy2, 16 * k, n); });

            float dp[M][N][4] = {};
            tile_multiply<M, N, HS / 16>(
                dp, [&](auto& a, int m, int k) { warp_V.load_a(a, 16 * m, k); },
                [&](auto& dy2, int n, int k) { tiles.douts(stage).load_b_of_rows(dy2, 16 * n, k); });
            for_columns(dp, rows, [&](float& x, const RowStats& r) { x -= r[1]; });
#pragma unroll
            for (int m = 0; m < M; ++m) multiply_scores(p[m], dp[m]);
            tile_multiply<M, Tiles::C, Tiles::kQueries / 16>(
                dk, [&](auto& a, int m, int k) { tile_pack_a(a, p[m], k); },
                [&](auto& q2, int n, int k) { tiles.queries(stage).load_b(q2, 16 * k, n); });
        }
        finish_copies();
        head = next_head;
        query = next_query;
    }

    flash_scale(dk, s.scale);
    flash_column_sums(partial, s, b, warp_first, s.NH + kv, dk);
    flash_column_sums(partial, s, b, warp_first, s.NH + s.NKV + kv, dv);
    bf16* dk_rows = s.packed(dqkv, b, warp_first, s.NH + kv);
    warp_K.store(dk_rows, s.packed_row, s.T - warp_first, dk);
    warp_V.store(dk_rows + s.NKV * HS, s.packed_row, s.T - warp_first, dv);
}

static_assert(
    kFlashBlocksFit<QueryGradientTiles<64>, QueryGradientTiles<128>, KeyGradientTiles<64>, KeyGradientTiles<128>>);

}  // namespace

int flash_attention_mma_backward(const FlashBackward& a, const Stream& stream) {
    return with_flash_head_size(a.shape.HS, [&]<int HS>(Constant<HS>) {
        using QueryTiles = QueryGradientTiles<HS>;
        using KeyTiles = KeyGradientTiles<HS>;
        static_assert(QueryTiles::M == KeyTiles::M);
        const FlashShape<HS> s(a.shape, a.first_key);
        launch<flash_attention_key_gradient_kernel<HS>>(
            {dim3(ceil_div(s.T, KeyTiles::kKeys), s.NKV, a.shape.B), kFlashThreads, KeyTiles::kBytes}, stream, a.dqkv,
            a.partial, a.dout, a.qkv, a.stats, s);
        launch<flash_attention_query_gradient_kernel<HS>>(
            {dim3(ceil_div(s.T, QueryTiles::kQueries), s.NH, a.shape.B), kFlashThreads, QueryTiles::kBytes}, stream,
            a.dqkv, a.partial, a.dout, a.qkv, a.stats, s);
        return 16 * KeyTiles::M;
    });
}

}  // namespace teon
