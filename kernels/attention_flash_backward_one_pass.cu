// The backward pass of flash attention in one pass, which computes S and dP once. A block processes a whole key/value
// head: it loops over the tiles of keys in order and, for each, over the tiles of queries that see it. dK and dV stay
// in registers. dQ accumulates in float in global memory that no other block writes, so that no atomics are needed and
// the bits are always the same. The last tile of keys that a query sees is that of the diagonal; then its dQ is rounded
// and written.
//
// Eight warps have 32 keys each. V stays in registers; the products read K and fragments of Q and dO, each used for 32
// keys, from shared memory. All warps store their dS, transposed, to shared memory. Then each computes 32 x 32 elements
// of dQ = dS K, while the sum over earlier tiles of keys is copied to the memory of Q and dO. There are two barriers
// per 128 queries.
//
// A block takes all registers of a multiprocessor and 162 KiB of shared memory.
#include "kernels/attention_flash_backward_one_pass.h"

namespace teon {

namespace {

constexpr int kHS = kOnePassHeadSize, kWarps = 8, kThreads = 32 * kWarps;
constexpr int kKeys = 256, kQueries = kOnePassRows;
constexpr int kStep = 16;  // queries whose scores are in registers at a time
constexpr int M = kKeys / (16 * kWarps), N = kStep / 8, C = kHS / 8;
constexpr int kSide = 32, kParts = kSide * kSide / 128;  // of dQ: a warp has kSide x kSide, a thread kParts x 4
static_assert(kSide * kSide * kWarps == kQueries * kHS);
static_assert(kSide == kOnePassWarpRows && 16 * M == kOnePassWarpRows);
using Key = TensorTile<bf16, kKeys, kHS, kThreads, true>;
using Query = TensorTile<bf16, kQueries, kHS, kThreads, true>;
using Score = TensorTile<bf16, kKeys, kQueries, kThreads, true>;
constexpr size_t kTileBytes = (Key::kElements + Score::kElements + 4 * Query::kElements) * sizeof(bf16);
constexpr size_t kBytes = kTileBytes + 2 * kQueries * sizeof(RowStats);
static_assert(kBytes <= kOnePassShared);
static_assert(Key::kElements == 2 * Query::kElements);  // V is loaded through the memory of one stage of Q and dO

// A sequence and a key/value head.
struct Place {
    int b, kv;
};

// Lane l passes word l % 4 (two columns) of two adjacent blocks of 8 columns of a row. It gets words 2 (l % 4) and
// 2 (l % 4) + 1 of the eight words of both blocks, so that four lanes store a whole sector.
__device__ __forceinline__ Vec<uint32_t, 2> four_columns(uint32_t first, uint32_t second) {
    const bool later = lane_of_thread() & 2, odd = lane_of_thread() & 1;
    const uint32_t kept = later ? second : first;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, later ? first : second, 2);
    const uint32_t low = later ? other : kept, high = later ? kept : other;  // words 0 or 1, and 2 or 3, of the block
    const uint32_t next = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
    return odd ? Vec<uint32_t, 2>{{next, high}} : Vec<uint32_t, 2>{{low, next}};
}

// sums: for each block, dQ of its query heads by tile of queries, then by part and thread. heads: all key/value heads,
// of which as many are in flight as the grid has blocks.
__global__ void __launch_bounds__(kThreads, 1)
    flash_attention_one_pass_kernel(bf16* dqkv, float* partial, float* sums, const bf16* dout, const bf16* qkv,
                                    const RowStats* stats, int heads, int query_tiles, FlashShape<kHS> s) {
    wait_for_earlier_kernels();
    DYN_SHARED(bf16, shared);
    const Key K{shared};
    const Score dS{K.memory + Key::kElements};
    auto queries = [&](int stage) { return Query{dS.memory + Score::kElements + 2 * stage * Query::kElements}; };
    auto douts = [&](int stage) { return Query{queries(stage).memory + Query::kElements}; };
    auto row_stats = [&](int stage) {
        return reinterpret_cast<RowStats*>(shared + kTileBytes / sizeof(bf16)) + stage * kQueries;
    };
    const Key V{queries(1).memory};
    const int warp = static_cast<int>(threadIdx.x / 32), lane = Key::this_lane();
    const Key warp_K = K.from(16 * M * warp), warp_V = V.from(16 * M * warp);

    for (int pair = static_cast<int>(blockIdx.x); pair < heads; pair += static_cast<int>(gridDim.x)) {
        auto pair_place = [&] {
            const int x = fresh(pair);
            return Place{x / s.NKV, x % s.NKV};
        };
        const Place at = pair_place();
        for (int key = 0; key < s.T; key += kKeys) {
            // The tiles of queries that see these keys: those of the first query head, then those of the next.
            const int per_head = query_tiles - key / kQueries, tiles = per_head * s.group;
            auto fetch = [&](int tile) {
                const Place at = pair_place();
                const int thread = Key::this_thread(), b = at.b, head = at.kv * s.group + tile / per_head;
                const int query = key + tile % per_head * kQueries, t = query + thread, stage = tile % 2;
                queries(stage).start_copy(Query::first_chunk(s.packed(qkv, b, query, head), s.packed_row), s.packed_row,
                                          s.T - query);
                douts(stage).start_copy(Query::first_chunk(s.plain(dout, b, query, head), s.plain_row), s.plain_row,
                                        s.T - query);
                if (thread < kQueries)
                    cp_async<8>(row_stats(stage) + thread, stats + s.row(b, head, t < s.T ? t : 0), t < s.T);
            };
            const int warp_first = key + 16 * M * warp, warp_last = warp_first + 16 * M - 1;
            const bf16* k = Key::first_chunk(s.packed(qkv, at.b, key, s.NH + at.kv), s.packed_row);
            __syncthreads();
            K.start_copy(k, s.packed_row, s.T - key);
            V.start_copy(k + s.NKV * kHS, s.packed_row, s.T - key);
            fetch(0);
            finish_copies();
            FlashOperand<M, kHS / 16, true> v;
            v.hold(warp_V);
            __syncthreads();

            // Q, dO, D and lse2 are 0 in rows beyond T, which therefore add 0 to dK and dV.
            float dk[M][C][4] = {}, dv[M][C][4] = {};
            for (int tile = 0; tile < tiles; tile++) {
                if (tile + 1 < tiles) fetch(tile + 1);
                const int query = key + tile % per_head * kQueries;
                const Query Q = queries(tile % 2), dO = douts(tile % 2);
#pragma unroll 1
                for (int step = 0; step < kQueries; step += kStep) {
                    uint32_t ds[M][4] = {};
                    if (query + step + kStep > warp_first) {
                        const RowStats* rows = row_stats(tile % 2) + step;
                        float p[M][N][4] = {};
                        tile_multiply<M, N, kHS / 16>(
                            p, [&](auto& a, int m, int c) { warp_K.load_a(a, 16 * m, c); },
                            [&](auto& q2, int, int c) { Q.load_b_of_rows(q2, step, c); });
                        for_columns<M, N>(
                            p, rows, [&](float& x, const RowStats& r) { x = exp2_fast(fmaf(x, s.scale_log2, -r[0])); });
                        if (query + step < warp_last) mask_transposed(p, warp_first, query + step, nullptr);
                        tile_multiply<M, C, 1>(
                            dv, [&](auto& a, int m, int) { tile_pack_a(a, p[m], 0); },
                            [&](auto& dy2, int n, int) { dO.load_b(dy2, step, n); });
                        float dp[M][N][4] = {};
                        tile_multiply<M, N, kHS / 16, kHS / 16>(
                            dp, [&](auto& a, int m, int c) { v.get(a, warp_V, m, c); },
                            [&](auto& dy2, int, int c) { dO.load_b_of_rows(dy2, step, c); });
                        for_columns<M, N>(dp, rows, [&](float& x, const RowStats& r) { x -= r[1]; });
#pragma unroll
                        for (int m = 0; m < M; m++) {
                            multiply_scores(p[m], dp[m]);
                            tile_pack_a(ds[m], p[m], 0);
                        }
                        tile_multiply<M, C, 1>(
                            dk,
                            [&](auto& a, int m, int) {
#pragma unroll
                                for (int i = 0; i < 4; i++) a[i] = ds[m][i];
                            },
                            [&](auto& q2, int n, int) { Q.load_b(q2, step, n); });
                    }
#pragma unroll
                    for (int m = 0; m < M; m++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const int row = 16 * (M * warp + m) + i % 2 * 8 + lane / 4;
                            reinterpret_cast<uint32_t*>(dS.chunk(row, step / 8 + i / 2))[lane % 4] = ds[m][i];
                        }
                    }
                }
                __syncthreads();

                const Place at = pair_place();
                const int thread = Key::this_thread(), h = tile / per_head, into = query - key;
                const int dq_row = thread / 64 * kSide, dq_column = thread / 32 % 2 * kSide;
                const int place = (static_cast<int>(blockIdx.x) * s.group + h) * query_tiles + query / kQueries;
                float* sum = sums + int64_t{place} * Query::kElements + 4 * thread;
                float* before = reinterpret_cast<float*>(Q.memory) + 4 * thread;
                if (key > 0) {
#pragma unroll
                    for (int i = 0; i < kParts; i++)
                        cp_async<16>(before + 4 * kThreads * i, sum + 4 * kThreads * i, true);
                    cp_async_commit();
                }
                float dq[kSide / 16][kSide / 8][4] = {};
                const int seen = into + dq_row + kSide;
#pragma unroll 1
                for (int i = 0; i < (seen < kKeys ? seen : kKeys); i += 16) {
                    tile_multiply<kSide / 16, kSide / 8, 1>(
                        dq, [&](auto& a, int m, int) { dS.load_a_of_columns(a, i, dq_row / 16 + m); },
                        [&](auto& k2, int n, int) { K.load_b(k2, i, dq_column / 16 + n); });
                }
                if (key > 0) {
                    cp_async_wait<0>();
#pragma unroll
                    for (int i = 0; i < kParts; i++) {
                        const auto earlier = load_vec<4>(before + 4 * kThreads * i);
                        FOR_VEC(j, 4) dq[i / 4][i % 4][j] += earlier[j];
                    }
                }
                if (into < kKeys) {
                    const int t = query + dq_row + thread % 32 / 4;
                    bf16* row = s.packed(dqkv, at.b, t, at.kv * s.group + h) + dq_column + thread % 4 * 4;
                    flash_scale(dq, s.scale);
#pragma unroll
                    for (int i = 0; i < kSide / 8; i++, row += 8 * s.packed_row) {
                        auto word = [&](int n) {
                            const float* x = dq[i / 2][n] + i % 2 * 2;
                            return pack<bf16>(x[0], x[1]);
                        };
#pragma unroll
                        for (int n = 0; n < kSide / 8; n += 2) {
                            const auto four = four_columns(word(n), word(n + 1));
                            if (t + 8 * i < s.T) store_vec(reinterpret_cast<uint32_t*>(row + 8 * n), four);
                        }
                    }
                    const Place at = pair_place();
                    flash_column_sums(partial, s, at.b, query + dq_row, at.kv * s.group + h, dq, dq_column);
                } else {
#pragma unroll
                    for (int i = 0; i < kParts; i++) {
                        Vec<float, 4> part;
                        FOR_VEC(j, 4) part[j] = dq[i / 4][i % 4][j];
                        store_vec(sum + 4 * kThreads * i, part);
                    }
                }
                finish_copies();
            }

            flash_scale(dk, s.scale);
            const int first = key + 16 * M * (Key::this_thread() / 32);  // warp_first would occupy a register
            flash_column_sums(partial, s, at.b, first, s.NH + at.kv, dk);
            flash_column_sums(partial, s, at.b, first, s.NH + s.NKV + at.kv, dv);
            bf16* dk_rows = s.packed(dqkv, at.b, warp_first, s.NH + at.kv);
            warp_K.store(dk_rows, s.packed_row, s.T - warp_first, dk);
            warp_V.store(dk_rows + s.NKV * kHS, s.packed_row, s.T - warp_first, dv);
        }
    }
}

}  // namespace

void flash_attention_backward_one_pass(bf16* dqkv, float* partial, float* sums, const bf16* dout, const bf16* qkv,
                                       const RowStats* stats, const AttentionShape& s, int heads_in_flight,
                                       const Stream& stream) {
    const int heads = s.B * s.NKV;
    launch<flash_attention_one_pass_kernel>({heads < heads_in_flight ? heads : heads_in_flight, kThreads, kBytes},
                                            stream, dqkv, partial, sums, dout, qkv, stats, heads,
                                            flash_tiles(s.T, kQueries), FlashShape<kHS>(s, nullptr));
}

}  // namespace teon
