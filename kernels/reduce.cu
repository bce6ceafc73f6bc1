// Sums of long arrays in two stages: the sum of each block, then the sum over the blocks, whose number depends on the
// length alone.
#include <algorithm>

#include "base/integer.h"
#include "kernels/common.h"
#include "kernels/reduce.h"

namespace teon {

// A worker sums a run of elements of its own: kReduceRun elements, or more if there would be more than
// kMaxReduceWorkers. On a GPU it is a block of one warp, whose lanes read neighbouring vectors; on a CPU it is a
// thread, which reads its run in order.
inline constexpr int kMaxReduceWorkers = 4096;
inline constexpr int kReduceLanes = kRowsByThread ? 1 : 32;  // of a worker
inline constexpr int64_t kReduceRun = 32 * 512;

template <int W, bool SQUARE>
__global__ void __launch_bounds__(32) reduce_partial_kernel(float* partial, const float* x, int64_t n, int64_t run) {
    wait_for_earlier_kernels();
    auto term = [](float v) { return SQUARE ? v * v : v; };
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t worker = kReduceLanes > 1 ? int64_t{blockIdx.x} : int64_t{blockIdx.x} * 32 + thread;
    const int lane = kReduceLanes > 1 ? thread : 0;
    const int64_t begin = worker * run;
    const int64_t end = std::min(n, begin + run);
    if (kReduceLanes == 1 && worker > 0 && begin >= end) return;  // there are fewer workers
    Vec<float, W> sums{};
    int64_t i = begin + lane * W;
#pragma unroll 4
    for (; i + W <= end; i += kReduceLanes * W) {
        const auto v = load_vec<W>(x + i);
        FOR_VEC(k, W) sums[k] += term(v[k]);
    }
    float sum = sum_of(sums);
    for (; i < end; ++i) sum += term(x[i]);  // the tail of n, by one lane
    if constexpr (kReduceLanes > 1) sum = warp_sum(sum);
    if (lane == 0) partial[worker] = sum;
}

__global__ void __launch_bounds__(kFlatBlock)
    reduce_final_kernel(float* out, const float* partial, int count, bool accumulate) {
    wait_for_earlier_kernels();
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kFlatBlock) sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[0] = (accumulate ? out[0] : 0.0f) + sum;
}

template <typename T, int W>
__global__ void __launch_bounds__(kFlatBlock) add_kernel(float* sum, const T* x, int64_t n) {
    wait_for_earlier_kernels();
    for_each_vec<W>(n, [=]<int w>(Constant<w>, int64_t i) {
        auto s = load_vec<w>(sum + i);
        const auto v = load_floats<w>(x + i);
        for (int k = 0; k < w; ++k) s[k] += v[k];
        store_vec(sum + i, s);
    });
}

template <typename T>
void add(float* sum, const T* x, int64_t n, const Stream& stream) {
    constexpr int kWidth = kVecWidth<float>;
    at_width<kWidth>(vec_aligned<float, kWidth>(0, sum, x), [&]<int W>(Constant<W>) {
        launch<add_kernel<T, W>>({flat_blocks<W>(n), kFlatBlock}, stream, sum, x, n);
    });
}
FOR_STORAGE_TYPES(add);

size_t reduce_scratch_bytes() { return sizeof(float) * kMaxReduceWorkers; }

template <bool SQUARE>
static void reduce(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream) {
    float* partial = static_cast<float*>(scratch);
    // A multiple of every width, so that all runs start aligned.
    const int64_t run = std::max(kReduceRun, round_up(ceil_div(n, kMaxReduceWorkers), 32));
    const int workers = static_cast<int>(std::max<int64_t>(1, ceil_div(n, run)));
    const int blocks = ceil_div(workers * kReduceLanes, 32);
    at_width<kVecWidth<float>>(vec_aligned<float, kVecWidth<float>>(0, x), [&]<int W>(Constant<W>) {
        launch<reduce_partial_kernel<W, SQUARE>>({blocks, 32}, stream, partial, x, n, run);
    });
    launch<reduce_final_kernel>({1, kFlatBlock}, stream, out, partial, workers, accumulate);
}

void reduce_sum(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream) {
    reduce<false>(out, scratch, x, n, accumulate, stream);
}

void reduce_sum_squares(float* out, void* scratch, const float* x, int64_t n, bool accumulate, const Stream& stream) {
    reduce<true>(out, scratch, x, n, accumulate, stream);
}

}  // namespace teon
