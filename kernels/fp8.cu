#include "kernels/fp8.h"

#include <cfloat>

#include "base/integer.h"
#include "kernels/maximum.h"

namespace teon {

void absolute_maximum(float* maximum, const bf16* x, int64_t n, const Stream& stream) {
    find_maximum(maximum, x, n, stream);
}

// A block casts a square tile and transposes it in shared memory. Rows of the tile are padded by a word, so that at
// most two lanes of a warp store to words of one bank.
inline constexpr int kFp8Tile = 64;
inline constexpr int kFp8Row = kFp8Tile + 4;
inline constexpr int kFp8Block = kGpu ? 256 : 32;  // a CPU would spend its time switching between more threads
inline constexpr int kFp8Width = kGpu ? 8 : 32;

template <typename F, int W>
__global__ void __launch_bounds__(kFp8Block)
    cast_fp8_kernel(F* y, F* transposed, float* scale, const bf16* x, const float* maximum, int rows, int cols) {
    wait_for_earlier_kernels();
    SHARED(F, tile, kFp8Tile * kFp8Row);
    F largest;
    largest.bits = F::kLargest;
    // The quotient is not compared with FLT_MAX: g++ 13 and 14 take it to be infinite for 0 alone, not on overflow.
    const float x_maximum = *maximum;
    float s = static_cast<float>(largest) / x_maximum;  // NaN stays
    if (x_maximum < static_cast<float>(largest) / FLT_MAX) s = FLT_MAX;
    if (x_maximum == 0.0f) s = 1.0f;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *scale = 1.0f / s;

    const int row0 = static_cast<int>(blockIdx.x) * kFp8Tile;
    const int col0 = static_cast<int>(blockIdx.y) * kFp8Tile;
    const int first = static_cast<int>(threadIdx.x) * W;
    for (int at = first; at < kFp8Tile * kFp8Tile; at += kFp8Block * W) {
        const int r = at / kFp8Tile;
        const int c = at % kFp8Tile;
        if (row0 + r >= rows || col0 + c >= cols) continue;
        const int64_t element = int64_t{row0 + r} * cols + col0 + c;
        auto v = load_floats<W>(x + element);
        FOR_VEC(k, W) v[k] *= s;
        const auto rounded = round_vec<F>(v);
        if (y != nullptr) store_vec(y + element, rounded);
        if (transposed != nullptr) FOR_VEC(k, W) tile[(c + k) * kFp8Row + r] = rounded[k];
    }
    if (transposed == nullptr) return;
    __syncthreads();
    for (int at = first; at < kFp8Tile * kFp8Tile; at += kFp8Block * W) {
        const int c = at / kFp8Tile;
        const int r = at % kFp8Tile;
        if (row0 + r >= rows || col0 + c >= cols) continue;
        constexpr int w = W < 4 ? W : 4;  // the alignment of the tile's rows
        Vec<F, W> column;
#pragma unroll
        for (int k = 0; k < W; k += w) store_vec(&column[k], load_vec<w>(tile + c * kFp8Row + r + k));
        store_vec(transposed + int64_t{col0 + c} * rows + row0 + r, column);
    }
}

template <typename F>
void cast_fp8(F* y, F* transposed, float* scale, const bf16* x, const float* maximum, int rows, int cols,
              const Stream& stream) {
    constexpr int W = kFp8Width;
    const dim3 tiles(static_cast<unsigned>(ceil_div(rows, kFp8Tile)), static_cast<unsigned>(ceil_div(cols, kFp8Tile)));
    at_width<W>(
        vec_aligned<bf16, W>(cols, x, y) && vec_aligned<F, W>(rows, transposed), [&]<int WIDTH>(Constant<WIDTH>) {
            launch<cast_fp8_kernel<F, WIDTH>>({tiles, kFp8Block}, stream, y, transposed, scale, x, maximum, rows, cols);
        });
}
template decltype(cast_fp8<e4m3>) cast_fp8<e4m3>;
template decltype(cast_fp8<e5m2>) cast_fp8<e5m2>;

}  // namespace teon
