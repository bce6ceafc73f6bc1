// Softmax cross-entropy, forward and backward in one kernel, in place over the logits. For a row x with target y
//
//   loss = log sum exp x - x_y,   d loss / d x = softmax(x) - onehot(y)
//
// One pass finds maximum and sum together (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867), a second one
// writes the gradient. On a GPU shared memory holds the row between the passes if it fits, so that the logits, the
// largest tensor of a small model, are read once and written once.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/integer.h"
#include "base/math.h"
#include "kernels/classifier.h"
#include "kernels/common.h"
#include "runtime/simt.h"

namespace teon {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kMostThreads = 512;
constexpr size_t kMostHeld = 99 << 10;  // bytes; two such blocks fit on a multiprocessor of an H100

// The number to subtract from x before exp(x): the maximum, but 0 if all values so far are -inf, so that their exp is 0
// and not NaN.
__device__ inline float shift_of(float maximum) { return maximum == -kInfinity ? 0.0f : maximum; }

// The maximum of x[0..V) and the sum of exp(x - maximum).
struct SoftmaxSum {
    float maximum, sum;
};

// Each of `threads` threads reads every threads-th vector of W columns and keeps W maxima, each with the sum of
// exp(x - maximum) over its columns so far. The thread reads a chunk of kChunk vectors for the maxima, and again, from
// the nearest cache, for the sums. So a sum is corrected once per chunk, and each logit takes one exp. HELD: the
// threads also copy the columns to `held`. One thread processes the columns that make no whole vector.
template <typename T, int W, bool ALONE, bool HELD>
__device__ SoftmaxSum softmax_sum(const T* x, T* held, int V, int thread, int threads) {
    constexpr int kChunk = 8;
    const int stride = threads * W;
    const int whole = V / W * W;
    float maximum[W];
    float sum[W];
    for (int i = 0; i < W; ++i) {
        maximum[i] = -kInfinity;
        sum[i] = 0.0f;
    }
    for (int begin = thread * W; begin < whole; begin += kChunk * stride) {
        const int end = std::min(whole, begin + kChunk * stride);
        float larger[W];
        float shift[W];
        float chunk_sum[W];
        for (int i = 0; i < W; ++i) larger[i] = maximum[i];
#pragma unroll 4
        for (int j = begin; j < end; j += stride) {
            auto vec = load_vec<W>(x + j);
            if constexpr (HELD) store_vec(held + j, vec);
            FOR_VEC(i, W) {
                const float value = static_cast<float>(vec[i]);
                larger[i] = value > larger[i] ? value : larger[i];
            }
        }
        for (int i = 0; i < W; ++i) {
            shift[i] = shift_of(larger[i]);
            chunk_sum[i] = 0.0f;
        }
        for (int j = begin; j < end; j += stride) {
            auto vec = load_vec<W>((HELD ? held : x) + j);
            FOR_VEC(i, W) chunk_sum[i] += exp_fast(static_cast<float>(vec[i]) - shift[i]);
        }
        for (int i = 0; i < W; ++i) {
            sum[i] = fmaf(sum[i], exp_fast(maximum[i] - shift[i]), chunk_sum[i]);
            maximum[i] = larger[i];
        }
    }
    if (whole < V && thread == whole / W % threads) {
        auto vec = load_vec<W>(x + whole);
        if constexpr (HELD) store_vec(held + whole, vec);
        for (int i = 0; i < W; ++i) {
            if (whole + i >= V) continue;
            const float value = static_cast<float>(vec[i]);
            const float larger = value > maximum[i] ? value : maximum[i];
            const float shift = shift_of(larger);
            sum[i] = fmaf(sum[i], exp_fast(maximum[i] - shift), exp_fast(value - shift));
            maximum[i] = larger;
        }
    }
    SoftmaxSum all{maximum[0], 0.0f};
    for (int i = 1; i < W; ++i) all.maximum = fmaxf(all.maximum, maximum[i]);
    if constexpr (!ALONE) all.maximum = block_max(all.maximum);
    for (int i = 0; i < W; ++i) sum[i] *= exp_fast(maximum[i] - shift_of(all.maximum));
    for (int i = 0; i < W; ++i) all.sum += sum[i];
    if constexpr (!ALONE) all.sum = block_sum(all.sum);
    return all;
}

// A row per block, or per thread (ALONE). Rows begin at multiples of W.
template <typename T, int W, bool ALONE, bool HELD>
__global__ void __launch_bounds__(kMostThreads) classifier_kernel(T* logits, float* losses, const int* targets, int N,
                                                                  int V, int Vp, float grad_scale, bool with_gradient) {
    wait_for_earlier_kernels();
    const int64_t row = ALONE ? static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x : blockIdx.x;
    if (row >= N) return;
    const int thread = ALONE ? 0 : threadIdx.x;
    const int threads = ALONE ? 1 : blockDim.x;
    T* x = logits + row * Vp;
    DYN_SHARED(T, held);  // (Vp), only if HELD
    const int target = targets[row];

    if (target < 0) {
        if (thread == 0) losses[row] = 0.0f;
        if (!with_gradient) return;
        for (int j = thread * W; j < Vp; j += threads * W) store_vec(x + j, Vec<T, W>{});
        return;
    }
    // A target outside of the vocabulary makes loss and gradient NaN, so that the step is skipped. All threads read
    // x[target] before the barriers of softmax_sum and overwrite it after them.
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float target_logit = target < V ? static_cast<float>(x[target]) : nan;
    const SoftmaxSum s = softmax_sum<T, W, ALONE, HELD>(x, held, V, thread, threads);
    if (thread == 0) losses[row] = s.maximum - target_logit + logf(s.sum);
    if (!with_gradient) return;

    const float normalize = target < V ? 1.0f / s.sum : nan;
    const float factor = grad_scale * normalize;
    // Writes the gradient of the vector at column j: 0 beyond its first `columns` columns.
    auto write = [&](int j, int columns) {
        auto vec = load_vec<W>((HELD ? held : x) + j);
        Vec<float, W> y;
        FOR_VEC(i, W) y[i] = exp_fast(static_cast<float>(vec[i]) - s.maximum) * factor;
        if (j <= target && target < j + columns) {
            for (int i = 0; i < W; ++i) {
                const float p = exp_fast(static_cast<float>(vec[i]) - s.maximum) * normalize;
                if (j + i == target) y[i] = grad_scale * (p - 1.0f);
            }
        }
        if (columns < W) {
            for (int i = 0; i < W; ++i) y[i] = i < columns ? y[i] : 0.0f;
        }
        store_vec(x + j, round_vec<T>(y));
    };
    const int whole = V / W * W;
    for (int j = thread * W; j < whole; j += threads * W) write(j, W);
    for (int j = whole + thread * W; j < Vp; j += threads * W) {
        if (j < V) {
            write(j, V - j);
        } else {
            store_vec(x + j, Vec<T, W>{});
        }
    }
}

}  // namespace

template <typename T>
void classifier(T* logits, float* losses, const int* targets, int N, int V, int Vp, float grad_scale,
                bool with_gradient, const Stream& stream) {
    CHECK(N >= 1 && V >= 1 && Vp >= V, "classifier: N={} V={} Vp={}, expected N >= 1 and Vp >= V >= 1", N, V, Vp);
    at_width<kVecWidth<T>>(vec_aligned<T, kVecWidth<T>>(Vp, logits), [&]<int W>(Constant<W>) {
        auto run = [&]<bool ALONE, bool HELD>(std::bool_constant<ALONE>, std::bool_constant<HELD>, int64_t blocks,
                                              int threads, size_t bytes) {
            launch<classifier_kernel<T, W, ALONE, HELD>>({blocks, threads, bytes}, stream, logits, losses, targets, N,
                                                         V, Vp, grad_scale, with_gradient);
        };
        constexpr std::true_type yes;
        constexpr std::false_type no;
        if constexpr (kRowsByThread) {  // on a CPU, sharing a row costs more than reading it, however long it is
            return run(yes, no, ceil_div(N, 32), 32, 0);
        } else {
            // With this many threads, two rows at a time keep a multiprocessor's memory busy.
            const size_t bytes = sizeof(T) * static_cast<size_t>(Vp);
            const size_t limit = std::min(kMostHeld, most_dynamic_shared<classifier_kernel<T, W, false, true>>());
            const auto threads = [&](int vectors) {
                return std::clamp(round_up(V / (vectors * W), 32), 32, kMostThreads);
            };
            if (bytes <= limit) return run(no, yes, N, threads(8), bytes);
            // About 32 vectors per thread hide the cost of the reductions.
            run(no, no, N, threads(32), 0);
        }
    });
}

FOR_STORAGE_TYPES(classifier);

}  // namespace teon
