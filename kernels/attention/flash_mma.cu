// Causal self-attention on tensor cores, tile by tile, so that scores stay in registers (Dao et al. 2022,
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
// The backward pass computes S and dP twice: several blocks that add to one dQ would need float atomics, whose order is
// not fixed, or would have to wait for each other. The pass for dK and dV computes the transposed S^T = K Q^T,
// so that P^T and dS^T are in the registers in which the products dV and dK expect their left operand.
//
// Q, K and V are read from the packed layout, and O, dQ, dK and dV are written in theirs. One block adds up the query
// heads that share a key/value head, in order. While one tile is multiplied, cp_async fetches the next; one barrier per
// tile both publishes the next tile and frees the previous one. Tiles that no row sees are never read: keys beyond the
// diagonal or before the first key of every row, and queries behind the last one that sees a key of the tile
// (first_key does not decrease, so that the first row of a tile has the smallest value).
//
// A block has four warps, each with 16 or 32 rows of the resident tile. 32 rows use every fragment of the streamed
// tiles twice, which halves the traffic from shared memory, the tighter limit on sm_80 and sm_90. HS = 128 leaves
// registers for only 16 rows in the backward pass. Tile sizes are such that two blocks fit on a multiprocessor: 64 KiB
// of shared memory and 255 registers, see `make check-cuda`.
//
// On sm_90a flash_hopper.cu and flash_hopper_backward.cu replace all of this.
#include "kernels/attention/flash_mma.h"

#include "kernels/attention/flash_softmax.h"

namespace teon {

namespace {

template <int HS>
struct ForwardTiles {
    static constexpr int kQueries = 128;
    static constexpr int kKeys = HS == 64 ? 64 : 32;
    static constexpr int M = kQueries / (16 * kFlashWarps);
    static constexpr int N = kKeys / 8;
    static constexpr int C = HS / 8;
    static constexpr bool kHold = HS == 64;
    using Query = FlashTile<kQueries, HS>;
    using Key = FlashTile<kKeys, HS>;
    static constexpr size_t kBytes = (Query::kElements + 4 * Key::kElements) * sizeof(bf16);
};

template <int HS>
__global__ void __launch_bounds__(kFlashThreads, kFlashBlocks)
    flash_attention_forward_kernel(bf16* out, float* lse, const bf16* qkv, FlashShape<HS> s) {
    wait_for_earlier_kernels();
    using Tiles = ForwardTiles<HS>;
    constexpr int M = Tiles::M;
    constexpr int N = Tiles::N;
    constexpr int C = Tiles::C;
    constexpr int kKeys = Tiles::kKeys;
    DYN_SHARED(bf16, shared);
    const typename Tiles::Query Q{shared};
    const typename Tiles::Query warp_Q = Q.from(16 * M * warp_of_thread());
    auto keys = [&](int stage) {
        return typename Tiles::Key{shared + Q.kElements + 2 * stage * Tiles::Key::kElements};
    };
    auto values = [&](int stage) { return typename Tiles::Key{keys(stage).memory + Tiles::Key::kElements}; };

    const int b = static_cast<int>(blockIdx.z);
    const int h = opaque(static_cast<int>(blockIdx.y));  // otherwise 13.0's code for sm_120 keeps multiples, and spills
    const int query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kQueries;  // the longest blocks start first
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
    fetch(begin, 0);
    finish_copies();

    float o[M][C][4] = {};
    FlashSoftmax<M> softmax;
    FlashOperand<M, HS / 16, Tiles::kHold> q;
    q.hold(warp_Q);

    for (int key = begin, stage = 0; key < end; key += kKeys, stage ^= 1) {
        if (key + kKeys < end) fetch(key + kKeys, stage ^ 1);
        if (rows.see_any(key, key + kKeys)) {
            float scores[M][N][4] = {};
            float shrink[M][2];
            tile_multiply<M, N, HS / 16>(
                scores, [&](auto& a, int m, int k) { q.get(a, warp_Q, m, k); },
                [&](auto& k2, int n, int k) { keys(stage).load_b_of_rows(k2, 16 * n, k); });
            softmax.step(scores, shrink, rows, key, s.scale_log2);
            flash_scale_rows(o, shrink);
            tile_multiply<M, C, kKeys / 16>(
                o, [&](auto& a, int m, int k) { tile_pack_a(a, scores[m], k); },
                [&](auto& v2, int n, int k) { values(stage).load_b(v2, 16 * k, n); });
        }
        finish_copies();
    }

    softmax.finish(o, lse, rows, h);
    warp_Q.store(s.plain(out, b, rows.first, h), s.plain_row, s.T - rows.first, o);
}

static_assert(kFlashBlocksFit<ForwardTiles<64>, ForwardTiles<128>>);

}  // namespace

void flash_attention_mma_forward(const FlashForward& a, const Stream& stream) {
    with_flash_head_size(a.shape.HS, [&]<int HS>(Constant<HS>) {
        using Tiles = ForwardTiles<HS>;
        const FlashShape<HS> s(a.shape, a.first_key);
        launch<flash_attention_forward_kernel<HS>>(
            {dim3(ceil_div(s.T, Tiles::kQueries), s.NH, a.shape.B), kFlashThreads, Tiles::kBytes}, stream, a.out, a.lse,
            a.qkv, s);
    });
}

}  // namespace teon
