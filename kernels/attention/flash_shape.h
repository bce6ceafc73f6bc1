// Shared by the passes of flash attention: the visible keys, the layout of heads, the checks before a launch. Private
// to kernels/attention/flash*.cu; flash_mma.cu describes the method.
#pragma once

#include <cmath>

#include "base/integer.h"
#include "base/math.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/flash_tile.h"
#include "kernels/common.h"

namespace teon {

inline constexpr float kLog2E = 1.44269504f;

// Tile sizes are such that two blocks of 4 warps fit on a multiprocessor. sm_80 has 164 KiB of shared memory there, of
// which the system takes 1 KiB per block; later architectures have more.
inline constexpr int kFlashBlocks = 2;
template <typename... Tiles>
inline constexpr bool kFlashBlocksFit = ((kFlashBlocks * (Tiles::kBytes + 1024) <= 164 * 1024) && ...);

// The shape, as a kernel argument.
template <int HS>
struct FlashShape {
    int T, NH, NKV, group;          // group: query heads that share a key/value head
    float scale, scale_log2;        // 1 / sqrt(HS), and log2(e) times that
    int64_t packed_row, plain_row;  // elements of a row of NH + 2 NKV heads, and of one of NH heads
    const int* first_key;           // (B, T) or nullptr

    FlashShape(const AttentionShape& s, const int* first_key)
        : T(s.T),
          NH(s.NH),
          NKV(s.NKV),
          group(s.NH / s.NKV),
          scale(1.0f / std::sqrt(static_cast<float>(HS))),
          scale_log2(scale * kLog2E),
          packed_row(s.qkv_width()),
          plain_row(static_cast<int64_t>(s.NH) * HS),
          first_key(first_key) {}

    // Row t of one head of sequence b in a tensor with the layout of qkv (packed) or of out (plain).
    template <typename E>
    __device__ __forceinline__ E* packed(E* x, int b, int t, int head) const {
        return x + (static_cast<int64_t>(b) * T + t) * packed_row + head * HS;
    }
    template <typename E>
    __device__ __forceinline__ E* plain(E* x, int b, int t, int head) const {
        return x + (static_cast<int64_t>(b) * T + t) * plain_row + head * HS;
    }
    // The index of row t of one head in lse and in the rows' statistics.
    __device__ __forceinline__ int64_t row(int b, int head, int t) const {
        return (static_cast<int64_t>(b) * NH + head) * T + t;
    }
    // The first key that row t of sequence b sees.
    __device__ __forceinline__ int first_key_of(int b, int t) const {
        return first_key ? first_key[static_cast<int64_t>(b) * T + t] : 0;
    }
    // The first key that a tile of queries reads. At most its first row: where no row sees a key, one tile of keys is
    // read as well, on which producer and consumers count.
    __device__ __forceinline__ int first_key_of_tile(int b, int query) const {
        const int first = first_key_of(b, query);
        return first < query ? first : query;
    }
};

// The 16 M query rows of one warp, from row `first` of sequence b on. Lane l holds parts of the rows
// first + 16 m + 8 half + l / 4.
template <int M, int HS>
struct FlashRows {
    const FlashShape<HS>& s;
    int b, first, last;
    int first_key, last_first_key;  // the first keys that the first and the last row see

    __device__ __forceinline__ FlashRows(const FlashShape<HS>& s, int b, int first)
        : s(s), b(b), first(first), last(first + 16 * M - 1) {
        first_key = first < s.T ? s.first_key_of(b, first) : 0;
        last_first_key = s.first_key_of(b, last < s.T ? last : s.T - 1);
    }
    __device__ __forceinline__ int row(int m, int half, int lane = lane_of_thread()) const {
        return first + 16 * m + 8 * half + lane / 4;
    }
    // Whether any row may see any of the keys [begin, end), and whether all rows see all of them.
    __device__ __forceinline__ bool see_any(int begin, int end) const { return begin <= last && end > first_key; }
    __device__ __forceinline__ bool see_all(int begin, int end) const {
        return end - 1 <= first && begin >= last_first_key;
    }
};

// The column of element i of the n-th fragment of a product.
__device__ __forceinline__ int flash_column(int n, int i, int lane = lane_of_thread()) {
    return 8 * n + lane % 4 * 2 + i % 2;
}

// Sets the elements of x for keys that their row does not see to `value`. The first column is key `key`.
template <int M, int N, typename Rows>
__device__ __forceinline__ void flash_mask(float (&x)[M][N][4], const Rows& rows, int key, float value,
                                           int lane = lane_of_thread()) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int last = rows.row(m, half, lane);
            const int first = last < rows.s.T ? rows.s.first_key_of(rows.b, last) : 0;
#pragma unroll
            for (int n = 0; n < N; ++n) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    const int column = key + flash_column(n, i, lane);
                    if (column < first || column > last) x[m][n][i] = value;
                }
            }
        }
    }
}

// Returns f(Constant<HS>{}) for a head size that flash attention supports.
template <typename F>
auto with_flash_head_size(int HS, F f) {
    return HS == 64 ? f(Constant<64>{}) : f(Constant<128>{});
}

}  // namespace teon
