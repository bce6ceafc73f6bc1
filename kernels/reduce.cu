// Sums of long arrays in two stages: blocks, whose number depends on the length alone, then the blocks' sums.
#include "kernels/common.h"
#include "kernels/ops.h"

namespace teon {

inline constexpr int kMaxReduceBlocks = 1024;
inline constexpr int64_t kReducePerBlock = int64_t{kFlatBlock} * 128;  // at least, while there are fewer blocks

template <int W, bool SQUARE>
__global__ void __launch_bounds__(kFlatBlock) reduce_partial_kernel(float* partial, const float* x, int64_t n) {
    auto term = [](float v) { return SQUARE ? v * v : v; };
    Vec<float, W> sums{};
    const int64_t thread = int64_t{blockIdx.x} * kFlatBlock + threadIdx.x, threads = int64_t{gridDim.x} * kFlatBlock;
    const int64_t vecs = n / W;
#pragma unroll 4
    for (int64_t i = thread; i < vecs; i += threads) {
        const auto v = load_vec<W>(x + i * W);
#pragma unroll
        for (int k = 0; k < W; k++) sums[k] += term(v[k]);
    }
    float sum = sum_of(sums);
    if (thread < n % W) sum += term(x[vecs * W + thread]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kFlatBlock)
    reduce_final_kernel(float* out, const float* partial, int count, bool accumulate) {
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kFlatBlock) sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[0] = (accumulate ? out[0] : 0.0f) + sum;
}

size_t reduce_scratch_bytes() { return sizeof(float) * kMaxReduceBlocks; }

template <bool SQUARE>
static void reduce(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream) {
    float* partial = static_cast<float*>(scratch);
    const int blocks =
        static_cast<int>(std::clamp<int64_t>((n + kReducePerBlock - 1) / kReducePerBlock, 1, kMaxReduceBlocks));
    for_flat_width<kVecWidth<float>>(
        [&](auto width) {
            launch<reduce_partial_kernel<decltype(width)::value, SQUARE>>({blocks, kFlatBlock}, stream, partial, x, n);
        },
        x);
    launch<reduce_final_kernel>({1, kFlatBlock}, stream, out, partial, blocks, accumulate);
}

void reduce_sum(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream) {
    reduce<false>(out, scratch, x, n, accumulate, stream);
}

void reduce_sum_squares(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream) {
    reduce<true>(out, scratch, x, n, accumulate, stream);
}

}  // namespace teon
