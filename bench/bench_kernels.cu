// Measures the kernels around the products on a CPU, by processor time on one thread: for operands in memory the bytes
// that each must move per second beside the machine's stream figure, and for operands in the second-level cache the
// elements per second, which is the rate of the core's units. A figure is the best of 15 runs, because other work on
// the machine only makes runs slower. The stream figure is that of a triad, a = b + 3 c, on arrays of the same size.
// Then attention at T = 4096 with windows of several sizes.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bench/benchmark.h"
#include "kernels/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/first_key.h"
#include "kernels/classifier.h"
#include "kernels/common.h"
#include "kernels/fill.h"
#include "kernels/norm.h"
#include "kernels/optimizers/adamw.h"
#include "kernels/reduce.h"

using namespace teon;

namespace {

template <int W>
__global__ void __launch_bounds__(kFlatBlock) triad_kernel(float* a, const float* b, const float* c, int64_t n) {
    wait_for_earlier_kernels();
    for_each_vec<W>(n, [=]<int w>(Constant<w>, int64_t i) {
        auto sum = load_vec<w>(b + i);
        const auto x = load_vec<w>(c + i);
        FOR_VEC(k, w) sum[k] = fmaf(3.0f, x[k], sum[k]);
        store_vec(a + i, sum);
    });
}

// The processor time of one run, in seconds.
double seconds_of(const std::function<void()>& run) {
    constexpr double kLeastMs = 5;
    run();
    double best = std::numeric_limits<double>::infinity();
    int runs = 1;
    for (int i = 0; i < 15; ++i) {
        const double begin = bench::processor_ms();
        for (int j = 0; j < runs; ++j) run();
        const double mean = (bench::processor_ms() - begin) / runs;
        best = std::min(best, mean);
        runs = static_cast<int>(std::clamp(kLeastMs / mean, 1.0, 1e5));
    }
    return best / 1e3;
}

struct Bench {
    Stream stream;
    double memory_rate = 0;                                             // of the triad, in bytes per second
    int64_t in_memory = int64_t{1} << 24, in_cache = int64_t{1} << 15;  // elements of a tensor

    template <typename T>
    Buffer<T> normal(int64_t n) {
        Buffer<float> values(n);
        fill_normal(values.data(), 1, static_cast<int>(n), 1, static_cast<int>(n), 1.0f, 1, 1, stream);
        Buffer<T> rounded(n);
        cast(rounded.data(), values.data(), n, stream);
        return rounded;
    }

    // make(n) returns a function that runs the kernel on tensors of n elements. `bytes`: of an element, of all tensors.
    template <typename Make>
    void row(const std::string& name, DType dtype, double bytes, Make make) {
        const auto rate = [&](int64_t n) { return static_cast<double>(n) / seconds_of(make(n)); };
        const double memory = rate(in_memory);
        const double cache = rate(in_cache);
        if (memory_rate == 0) memory_rate = memory * bytes;
        fmt::print("{:<16} {:<6} {:>6.1f} {:>10.2f} {:>8.1f} {:>9.0f}% {:>12.2f} {:>10.1f}\n", name, name_of(dtype),
                   bytes, memory * 1e-9, memory * bytes * 1e-9, 100 * memory * bytes / memory_rate, cache * 1e-9,
                   cache * bytes * 1e-9);
        std::fflush(stdout);
    }
};

void triad(Bench& b) {
    Buffer<float> x = b.normal<float>(b.in_memory);
    Buffer<float> y = b.normal<float>(b.in_memory);
    Buffer<float> z = b.normal<float>(b.in_memory);
    b.row("triad", DType::f32, 12, [&](int64_t n) {
        return [&, n] {
            constexpr int W = kVecWidth<float>;
            launch<triad_kernel<W>>({flat_blocks<W>(n), kFlatBlock}, b.stream, x.data(), y.data(), z.data(), n);
        };
    });
}

template <typename T>
void activations(Bench& b) {
    constexpr int F = 1024;
    const int64_t n = b.in_memory;
    Buffer<T> x = b.normal<T>(n);
    Buffer<T> y = b.normal<T>(n);
    Buffer<T> dx = b.normal<T>(n);
    Buffer<float> bias(F);
    const auto rows = [](int64_t elements) { return static_cast<int>(elements / F); };
    const size_t bytes = activation_backward_scratch_bytes(ActivationKind::gelu, rows(n), F);
    Buffer<std::byte> scratch(static_cast<int64_t>(bytes));
    b.row("GELU forward", dtype_of<T>, 2 * sizeof(T), [&](int64_t size) {
        return [&, N = rows(size)] { activation_forward(ActivationKind::gelu, y.data(), x.data(), N, F, b.stream); };
    });
    b.row("GELU backward", dtype_of<T>, 3 * sizeof(T), [&](int64_t size) {
        return [&, N = rows(size)] {
            activation_backward(ActivationKind::gelu, dx.data(), bias.data(), scratch.data(), x.data(), y.data(), N, F,
                                false, b.stream);
        };
    });
}

template <typename T>
void norms(Bench& b) {
    constexpr int C = 512;
    const int64_t n = b.in_memory;
    const auto rows = [](int64_t elements) { return static_cast<int>(elements / C); };
    Buffer<T> x = b.normal<T>(n);
    Buffer<T> y = b.normal<T>(n);
    Buffer<T> dx = b.normal<T>(n);
    Buffer<T> weight = b.normal<T>(C);
    Buffer<T> bias = b.normal<T>(C);
    Buffer<float> mean(rows(n));
    Buffer<float> rstd(rows(n));
    Buffer<float> sums(3 * C);
    const size_t bytes = norm_backward_scratch_bytes(NormKind::layernorm, rows(n), C);
    Buffer<std::byte> scratch(static_cast<int64_t>(bytes));
    b.row("norm forward", dtype_of<T>, 2 * sizeof(T), [&](int64_t size) {
        return [&, N = rows(size)] {
            norm_forward<T>(NormKind::layernorm,
                            {.out = y.data(),
                             .mean = mean.data(),
                             .rstd = rstd.data(),
                             .x = x.data(),
                             .weight = weight.data(),
                             .bias = bias.data(),
                             .N = N,
                             .C = C,
                             .eps = 1e-5f},
                            b.stream);
        };
    });
    b.row("norm backward", dtype_of<T>, 4 * sizeof(T), [&](int64_t size) {
        return [&, N = rows(size)] {
            norm_backward<T>(NormKind::layernorm,
                             {.dx = dx.data(),
                              .dweight = sums.data(),
                              .dbias = sums.data() + C,
                              .dx_sums = sums.data() + 2 * C,
                              .scratch = scratch.data(),
                              .dout = y.data(),
                              .dresidual = dx.data(),
                              .x = x.data(),
                              .mean = mean.data(),
                              .rstd = rstd.data(),
                              .weight = weight.data(),
                              .N = N,
                              .C = C,
                              .accumulate = false},
                             b.stream);
        };
    });
}

template <typename T>
void softmax(Bench& b) {
    constexpr int V = 8192;
    const int64_t n = b.in_memory;
    const auto rows = [](int64_t elements) { return static_cast<int>(elements / V); };
    Buffer<T> logits = b.normal<T>(n);
    Buffer<float> losses(rows(n));
    Buffer<int> targets(rows(n));
    zero(targets.data(), targets.size(), b.stream);
    b.row("classifier", dtype_of<T>, 2 * sizeof(T), [&](int64_t size) {
        return [&, N = rows(size)] {
            classifier(logits.data(), losses.data(), targets.data(), N, V, V, 1.0f, true, b.stream);
        };
    });
}

template <typename T>
void updates(Bench& b) {
    const int64_t n = b.in_memory;
    constexpr bool kCopy = !std::is_same_v<T, float>;  // of the weights, beside float masters
    Buffer<float> master = b.normal<float>(n);
    Buffer<float> grad = b.normal<float>(n);
    Buffer<float> first(n);
    Buffer<float> second(n);
    zero(first.data(), n, b.stream);
    zero(second.data(), n, b.stream);
    Buffer<T> work(kCopy ? n : 0);
    Buffer<StepControl> control(1);
    const StepControl tenth{
        .grad_norm = 1.0f, .scale = 1.0f, .updates = 10, .bias_correction1 = 0.65f, .bias_correction2 = 0.4f};
    upload(control.data(), &tenth, 1, b.stream);
    b.stream.synchronize();
    b.row("AdamW", dtype_of<T>, kCopy ? 30 : 28, [&](int64_t size) {
        return [&, size] {
            adamw_update(master.data(), kCopy ? work.data() : nullptr, first.data(), second.data(), grad.data(),
                         control.data(), size, {3e-4f, 1.0f, 0.1f}, {0.9f, 0.95f, 1e-8f}, b.stream);
        };
    });
    if (kCopy) return;
    Buffer<float> sum(1);
    Buffer<std::byte> scratch(static_cast<int64_t>(reduce_scratch_bytes()));
    b.row("gradient norm", DType::f32, 4, [&](int64_t size) {
        return [&, size] { reduce_sum_squares(sum.data(), scratch.data(), grad.data(), size, false, b.stream); };
    });
}

template <typename T>
void kernels_of(Bench& b) {
    activations<T>(b);
    norms<T>(b);
    softmax<T>(b);
    updates<T>(b);
}

// A long sequence with each window; 0 for none.
template <typename T>
void attention(Bench& b) {
    const AttentionShape s{.B = 1, .T = 4096, .NH = 4, .NKV = 4, .HS = 64};
    Context context;
    Buffer<T> qkv = b.normal<T>(s.T * s.qkv_width());
    Buffer<T> dqkv = b.normal<T>(s.T * s.qkv_width());
    Buffer<T> out = b.normal<T>(s.T * s.out_width());
    Buffer<T> dout = b.normal<T>(s.T * s.out_width());
    Buffer<float> lse(int64_t{s.NH} * s.T);
    Buffer<std::byte> scratch(static_cast<int64_t>(attention_scratch_bytes(s, dtype_of<T>)));
    Buffer<int> first_keys(s.T);
    for (const int window : {0, 1024, 256, 64}) {
        window_first_keys(first_keys.data(), nullptr, s.B, s.T, window > 0 ? window : s.T, context.stream);
        const int* first_key = window > 0 ? first_keys.data() : nullptr;
        const double forward = seconds_of(
            [&] { attention_forward(out.data(), lse.data(), scratch.data(), qkv.data(), first_key, s, context); });
        const double backward = seconds_of([&] {
            attention_backward(dqkv.data(), scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(), first_key,
                               s, context);
        });
        fmt::print("attention, {:<5} window {:>4}: forward {:>6.1f} ms, backward {:>6.1f}; {:.0f} keys a row\n",
                   name_of(dtype_of<T>), window, 1e3 * forward, 1e3 * backward, mean_keys(s.T, window));
        std::fflush(stdout);
    }
}

}  // namespace

int main() {
    return bench::run_main([] {
        if (device_info().is_gpu) {
            fmt::print("SKIPPED: bench_kernels measures CPUs; for a GPU: make gpu-first\n");
            return;
        }
        set_simt_threads(1);
        fmt::print("{}, one thread; G: 1e9 per second of processor time\n", device_info().name);
        fmt::print("{:<16} {:<6} {:>6} {:>10} {:>8} {:>10} {:>12} {:>10}\n", "kernel", "type", "bytes", "G elements",
                   "GB/s", "of triad", "in L2: G el.", "GB/s");
        Bench b;
        triad(b);
        kernels_of<float>(b);
        kernels_of<bf16>(b);
        attention<float>(b);
        attention<bf16>(b);
    });
}
