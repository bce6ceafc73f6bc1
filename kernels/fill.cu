// Initial values and conversions.
#include <algorithm>

#include "base/integer.h"
#include "kernels/common.h"
#include "kernels/fill.h"
#include "kernels/philox.h"

namespace teon {

// Thread q generates the numbers of elements [4q, 4q + 4), counted without padding, from the counter (q, tensor) and
// the key seed.
__global__ void __launch_bounds__(kFlatBlock)
    fill_normal_kernel(float* x, int64_t n, int cols, int logical_cols, float std, uint64_t seed, uint64_t tensor) {
    wait_for_earlier_kernels();
    const int64_t q = int64_t{blockIdx.x} * kFlatBlock + threadIdx.x;
    if (4 * q >= n) return;
    const uint64_t index = static_cast<uint64_t>(q);
    const PhiloxCounter counter = {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                                    static_cast<uint32_t>(tensor), static_cast<uint32_t>(tensor >> 32)}};
    const PhiloxKey key = {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}};
    const PhiloxCounter bits = philox4x32_10(counter, key);
#pragma unroll
    for (int k = 0; k < 4; k += 2) {  // Box-Muller: two uniform numbers become two normal ones
        const float radius = std * sqrtf(-2.0f * logf(uniform_of(bits.v[k])));
        const float angle = 6.283185307f * uniform_of(bits.v[k + 1]);
        const float pair[2] = {radius * cosf(angle), radius * sinf(angle)};
        for (int e = 0; e < 2; ++e) {
            const int64_t i = 4 * q + k + e;
            if (i < n) x[i / logical_cols * cols + i % logical_cols] = pair[e];
        }
    }
}

__global__ void __launch_bounds__(kFlatBlock)
    fill_constant_kernel(float* x, int64_t n, int cols, int logical_rows, int logical_cols, float value) {
    wait_for_earlier_kernels();
    for_each_vec<1>(n,
                    [=](auto, int64_t i) { x[i] = i / cols < logical_rows && i % cols < logical_cols ? value : 0.0f; });
}

template <typename Dst, typename Src, int W>
__global__ void __launch_bounds__(kFlatBlock) cast_kernel(Dst* dst, const Src* src, int64_t n) {
    wait_for_earlier_kernels();
    for_each_vec<W>(n, [=]<int w>(Constant<w>, int64_t i) { store_floats(dst + i, load_floats<w>(src + i)); });
}

static void check_fill(int rows, int cols, int logical_rows, int logical_cols) {
    CHECK(0 <= logical_rows && logical_rows <= rows && 0 <= logical_cols && logical_cols <= cols,
          "fill: {} x {} values do not fit into {} x {}", logical_rows, logical_cols, rows, cols);
}

void fill_normal(float* x, int rows, int cols, int logical_rows, int logical_cols, float std, uint64_t seed,
                 uint64_t tensor, const Stream& stream) {
    check_fill(rows, cols, logical_rows, logical_cols);
    if (logical_rows < rows || logical_cols < cols) zero(x, int64_t{rows} * cols, stream);
    const int64_t n = int64_t{logical_rows} * logical_cols;
    const int64_t quads = ceil_div(n, 4);
    launch<fill_normal_kernel>({ceil_div(quads, kFlatBlock), kFlatBlock}, stream, x, n, cols, logical_cols, std, seed,
                               tensor);
}

void fill_constant(float* x, int rows, int cols, int logical_rows, int logical_cols, float value,
                   const Stream& stream) {
    check_fill(rows, cols, logical_rows, logical_cols);
    const int64_t n = int64_t{rows} * cols;
    launch<fill_constant_kernel>({flat_blocks<1>(n), kFlatBlock}, stream, x, n, cols, logical_rows, logical_cols,
                                 value);
}

template <typename Dst, typename Src>
void cast(Dst* dst, const Src* src, int64_t n, const Stream& stream) {
    constexpr int kWidest = std::min(kVecWidth<Dst>, kVecWidth<Src>);
    at_width<kWidest>(vec_aligned<Dst, kWidest>(0, dst, src), [&]<int W>(Constant<W>) {
        launch<cast_kernel<Dst, Src, W>>({flat_blocks<W>(n), kFlatBlock}, stream, dst, src, n);
    });
}

template void cast(float*, const float*, int64_t, const Stream&);
template void cast(float*, const bf16*, int64_t, const Stream&);
template void cast(float*, const f16*, int64_t, const Stream&);
template void cast(bf16*, const float*, int64_t, const Stream&);
template void cast(bf16*, const bf16*, int64_t, const Stream&);
template void cast(bf16*, const f16*, int64_t, const Stream&);
template void cast(f16*, const float*, int64_t, const Stream&);
template void cast(f16*, const bf16*, int64_t, const Stream&);
template void cast(f16*, const f16*, int64_t, const Stream&);

}  // namespace teon
