// Measures attention at several T and HS, each kernel of a GPT-2 124M step and the copy bandwidth, for `make gpu-first`
// (dev/first_hour/speed.py), and prints one JSON object per line. Each operation states its FLOPs and the least
// number of bytes that it must move.
//
//   bench_gpu                      all operations; without a GPU nothing runs, and "ms" is null
//   bench_gpu --list               the operations; nothing runs
//   bench_gpu --input-file FILE    those whose names are lines of FILE, in which \ escapes a character
//
// Also writes their starts and results to the file TEON_TEST_LOG, as the test programs do, so that a kernel that hangs
// or fails has a name and dev/run_tests.py continues with the others.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "base/gpus.h"
#include "base/integer.h"
#include "bench/benchmark.h"
#include "kernels/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/flash.h"
#include "kernels/classifier.h"
#include "kernels/fill.h"
#include "kernels/norm.h"
#include "kernels/optimizers/adamw.h"
#include "kernels/reduce.h"
#include "model/decoder.h"
#include "model/gpt2.h"

using namespace teon;

namespace {

using T = bf16;

// Memory for the tensors of one operation at a time, filled with normal numbers of standard deviation 1 because
// products of zeros or NaN run faster. Allocates nothing without a GPU.
class Memory {
public:
    Memory(bool gpu, int64_t bytes, const Stream& stream) : gpu_(gpu), bytes_(bytes), stream_(stream) {
        if (!gpu) return;
        memory_ = Buffer<std::byte>(bytes);
        normal_ = Buffer<float>(int64_t{kRows} * kCols);
        fill_normal(normal_.data(), kRows, kCols, kRows, kCols, 1.0f, 1, 1, stream);
        fill(bytes);
    }
    // Frees the operation's tensors and fills their memory with normal numbers again.
    void reset(bool written = true) {
        if (gpu_ && written) fill(used_);
        used_ = 0;
    }
    template <typename E>
    E* take(int64_t n) {
        const int64_t bytes = aligned(n * int64_t{sizeof(E)});
        CHECK(used_ + bytes <= bytes_, "bench_gpu: an operation needs more than {} bytes", bytes_);
        used_ += bytes;
        return gpu_ ? reinterpret_cast<E*>(memory_.data() + used_ - bytes) : nullptr;
    }
    void* scratch(size_t bytes) { return take<std::byte>(static_cast<int64_t>(bytes)); }

private:
    static constexpr int kRows = 1024;
    static constexpr int kCols = 4096;

    void fill(int64_t bytes) {
        const int64_t n = bytes / static_cast<int64_t>(sizeof(T));
        for (int64_t i = 0; i < n; i += normal_.size())
            cast(reinterpret_cast<T*>(memory_.data()) + i, normal_.data(), std::min<int64_t>(normal_.size(), n - i),
                 stream_);
    }

    bool gpu_;
    int64_t bytes_, used_ = 0;
    const Stream& stream_;
    Buffer<std::byte> memory_;
    Buffer<float> normal_;
};

// The names of the operations to run, one per line; nullopt: all.
using Names = std::optional<std::set<std::string>>;

Names read_names(const char* path) {
    std::ifstream file(path);
    CHECK_USAGE(file, "bench_gpu --input-file {}: cannot be read", path);
    std::set<std::string> names;
    for (std::string line; std::getline(file, line);) {
        std::erase(line, '\\');
        names.insert(line);
    }
    return names;
}

struct Bench {
    Context context;
    bool gpu;
    Names names;
    Memory memory{gpu, int64_t{6} << 30, context.stream};
    std::FILE* log = std::getenv("TEON_TEST_LOG") ? std::fopen(std::getenv("TEON_TEST_LOG"), "w") : nullptr;

    Bench(bool gpu, Names names) : gpu(gpu), names(std::move(names)) {}

    // Measures and prints an operation. `row` is its description without the last figure, milliseconds per run. Returns
    // whether the operation was wanted.
    bool operation(const std::string& name, const std::string& row, const std::function<void()>& run) {
        if (names && !names->contains(name)) return false;
        note("started", name, "");
        const std::string ms = gpu ? fmt::format("{:.6f}", bench::measure(context.stream, run).median) : "null";
        const std::string text = fmt::format(R"({{"name": "{}", {}, "ms": {}}})", name, row, ms);
        fmt::print("{}\n", text);
        std::fflush(stdout);
        note("passed", name, text);
        return true;
    }
    // Likewise for an operation that a step runs `count` times; frees its tensors.
    void kernel(const char* name, int count, double flops, double bytes, const std::function<void()>& run) {
        memory.reset(operation(
            name,
            fmt::format(R"("kind": "kernel", "count": {}, "flops": {:.0f}, "bytes": {:.0f})", count, flops, bytes),
            run));
    }

private:
    void note(const char* what, const std::string& name, const std::string& detail) {
        if (!log) return;
        fmt::print(log, "{}\t{}\t{}\n", what, name, detail);
        std::fflush(log);
    }
};

// FLOPs of the causal half. The forward pass has two products, the backward pass five.
double attention_flops(const AttentionShape& s, int products) {
    return products * 2.0 * s.B * s.NH * s.HS * (0.5 * s.T * (s.T + 1.0));
}
double attention_rows(const AttentionShape& s) { return static_cast<double>(s.B) * s.T; }

struct AttentionTensors {
    T *qkv, *out, *dout, *dqkv;
    float* lse;
    void *scratch, *flash_scratch;
    float* dbias;
    AttentionTensors(Memory& m, const AttentionShape& s) {
        const int64_t rows = int64_t{s.B} * s.T;
        const int64_t C = int64_t{s.NH} * s.HS;
        qkv = m.take<T>(rows * s.qkv_width());
        dqkv = m.take<T>(rows * s.qkv_width());
        out = m.take<T>(rows * C);
        dout = m.take<T>(rows * C);
        lse = m.take<float>(rows * s.NH);
        scratch = m.scratch(attention_scratch_bytes(s, DType::bf16));
        flash_scratch = m.scratch(flash_attention_scratch_bytes(s, true));
        dbias = m.take<float>(s.qkv_width());
    }
};

// 16384 tokens of 1024 channels.
void attention(Bench& b) {
    for (int HS : {64, 128}) {
        for (int length : {256, 1024, 8192}) {
            const AttentionShape s{16384 / length, length, 1024 / HS, 1024 / HS, HS};
            const AttentionTensors t(b.memory, s);
            Context& c = b.context;
            const double tensor = attention_rows(s) * s.NH * s.HS * sizeof(T);  // bytes of one of q, k, v, out
            bool written = false;
            auto print = [&](const char* method, const char* pass, int products, int tensors,
                             const std::function<void()>& run) {
                const std::string name = fmt::format("attention {}, {}, T {}, HS {}", pass, method, s.T, s.HS);
                const std::string row = fmt::format(
                    R"("kind": "attention", "method": "{}", "pass": "{}", "B": {}, "T": {}, "NH": {}, "HS": {}, )"
                    R"("flops": {:.0f}, "bytes": {:.0f})",
                    method, pass, s.B, s.T, s.NH, s.HS, attention_flops(s, products), tensors * tensor);
                written = b.operation(name, row, run) || written;
            };
            for (const Kernels kernels : {Kernels::fastest, Kernels::portable}) {
                c.stream.set_kernels(kernels);
                const char* method = kernels == Kernels::fastest ? "flash" : "flash portable";
                print(method, "forward", 2, 4,
                      [&] { flash_attention_forward(t.out, t.lse, t.qkv, nullptr, s, c.stream); });
                print(method, "backward", 5, 8, [&] {
                    flash_attention_backward(t.dqkv, t.flash_scratch, t.dout, t.qkv, t.out, t.lse, nullptr, s,
                                             c.stream);
                });
            }
            c.stream.set_kernels(Kernels::fastest);
            print("gemm", "forward", 2, 4, [&] { attention_forward(t.out, t.lse, t.scratch, t.qkv, nullptr, s, c); });
            print("gemm", "backward", 5, 8,
                  [&] { attention_backward(t.dqkv, t.scratch, t.dout, t.qkv, t.out, t.lse, nullptr, s, c); });
            b.memory.reset(written);
        }
    }
}

// Measures the product `g` with new operands: A and B of type T, C of type Output. With beta, a result of type T adds
// an addend, and a float result accumulates into C.
template <typename Output>
void product(Bench& b, const std::string& name, int count, double bytes, Gemm g) {
    const int64_t M = g.M;
    const int64_t N = g.N;
    const int64_t K = g.K;
    g.A = mat(b.memory.take<T>(M * K), g.trans_a ? M : K);
    g.B = mat(b.memory.take<T>(N * K), g.trans_b ? K : N);
    g.C = mat(b.memory.take<Output>(M * N), N);
    if (g.beta != 0.0f && std::is_same_v<Output, T>) g.addend = mat(b.memory.take<Output>(M * N), N);
    if (g.epilogue == Epilogue::bias) g.bias = mat(b.memory.take<Output>(N), N);
    b.kernel(name.c_str(), count, 2.0 * g.M * g.N * g.K, bytes, [&] { b.context.linalg.gemm(g); });
}

// The products of a linear layer y (N, out) = x (N, in) W^T + bias (+ residual): forward, the gradient of x, and the
// gradient of W (float, +=).
struct LinearBench {
    std::string name;
    int count, N, out, in;
    bool bias = false, residual = false;
};
void linear(Bench& b, const LinearBench& l) {
    const double x = 2.0 * l.N * l.in;
    const double y = 2.0 * l.N * l.out;
    const double w = 2.0 * l.out * l.in;
    Gemm forward{.M = l.N, .N = l.out, .K = l.in, .trans_b = true, .beta = l.residual ? 1.0f : 0.0f};
    Gemm dX{.M = l.N, .N = l.in, .K = l.out};
    Gemm dW{.M = l.out, .N = l.in, .K = l.N, .trans_a = true, .beta = 1.0f};
    if (l.bias) forward.epilogue = Epilogue::bias;
    product<T>(b, l.name + " forward", l.count, x + w + y * (l.residual ? 2 : 1), forward);
    product<T>(b, l.name + " dX", l.count, x + w + y, dX);
    product<float>(b, l.name + " dW", l.count, x + y + 4 * w, dW);  // read and written
}

// The shape of a GPT-2 124M step of one micro-batch of 64 x 1024 tokens.
struct StepShape {
    DecoderConfig config = gpt2_family().config("small");
    int L = config.L, C = config.C, F = config.Fp(), V = config.V, Vp = config.Vp();
    AttentionShape attention{64, 1024, config.NH, config.NKV, config.HS()};
    int N = attention.B * attention.T;
    int chunk = 8192;         // rows of logits
    double NC = 2.0 * N * C;  // bytes of the residual stream
};

void step_products(Bench& b, const StepShape& s) {
    const int L = s.L;
    const int C = s.C;
    const int F = s.F;
    const int N = s.N;
    linear(b, {.name = "qkv", .count = L, .N = N, .out = 3 * C, .in = C, .bias = true});
    linear(b, {.name = "attention out", .count = L, .N = N, .out = C, .in = C, .bias = true, .residual = true});
    linear(b, {.name = "MLP up", .count = L, .N = N, .out = F, .in = C, .bias = true});
    linear(b, {.name = "MLP down", .count = L, .N = N, .out = C, .in = F, .bias = true, .residual = true});
    linear(b, {.name = "head", .count = N / s.chunk, .N = s.chunk, .out = s.Vp, .in = C});
}

void step_attention(Bench& b, const StepShape& step) {
    const AttentionShape& s = step.attention;
    const Stream& stream = b.context.stream;
    AttentionTensors t(b.memory, s);
    const auto forward = [&] { flash_attention_forward(t.out, t.lse, t.qkv, nullptr, s, stream); };
    b.kernel("attention forward", step.L, attention_flops(s, 2), 4 * step.NC, forward);
    t = AttentionTensors(b.memory, s);
    if (b.gpu) forward();
    b.kernel("attention backward", step.L, attention_flops(s, 5), 8 * step.NC, [&] {
        flash_attention_backward(t.dqkv, t.flash_scratch, t.dout, t.qkv, t.out, t.lse, nullptr, s, stream, t.dbias,
                                 true);
    });
}

void step_norms(Bench& b, const StepShape& s) {
    constexpr NormKind kKind = NormKind::layernorm;
    const int C = s.C;
    const int N = s.N;
    const Stream& stream = b.context.stream;
    Memory& m = b.memory;
    const auto rows = [&] { return m.take<T>(int64_t{N} * C); };
    const NormForward<T> forward{.out = rows(),
                                 .mean = m.take<float>(N),
                                 .rstd = m.take<float>(N),
                                 .x = rows(),
                                 .weight = m.take<T>(C),
                                 .bias = m.take<T>(C),
                                 .N = N,
                                 .C = C,
                                 .eps = 1e-5f};
    b.kernel("norm forward", 2 * s.L + 1, 0, 2 * s.NC, [&] { norm_forward<T>(kKind, forward, stream); });
    NormBackward<T> backward{.dx = rows(),
                             .dweight = m.take<float>(C),
                             .dbias = m.take<float>(C),
                             .dx_sums = m.take<float>(C),
                             .scratch = m.scratch(norm_backward_scratch_bytes(kKind, N, C)),
                             .dout = rows(),
                             .x = rows(),
                             .mean = m.take<float>(N),
                             .rstd = m.take<float>(N),
                             .weight = m.take<T>(C),
                             .N = N,
                             .C = C,
                             .accumulate = true};
    backward.dresidual = backward.dx;
    b.kernel("norm backward", 2 * s.L + 1, 0, 4 * s.NC, [&] { norm_backward<T>(kKind, backward, stream); });
}

void step_gelu(Bench& b, const StepShape& s) {
    constexpr ActivationKind kKind = ActivationKind::gelu;
    const Stream& stream = b.context.stream;
    const int64_t size = int64_t{s.N} * s.F;
    T* y = b.memory.take<T>(size);
    T* x = b.memory.take<T>(size);
    b.kernel("GELU forward", s.L, 0, 4.0 * size, [&] { activation_forward(kKind, y, x, s.N, s.F, stream); });
    y = b.memory.take<T>(size);
    x = b.memory.take<T>(size);
    float* db = b.memory.take<float>(s.F);
    void* scratch = b.memory.scratch(activation_backward_scratch_bytes(kKind, s.N, s.F));
    b.kernel("GELU backward", s.L, 0, 6.0 * size,
             [&] { activation_backward(kKind, y, db, scratch, x, y, s.N, s.F, true, stream); });
}

void step_classifier(Bench& b, const StepShape& s) {
    T* logits = b.memory.take<T>(int64_t{s.chunk} * s.Vp);
    float* losses = b.memory.take<float>(s.chunk);
    Buffer<int> targets(b.gpu ? s.chunk : 0);
    if (b.gpu) zero(targets.data(), s.chunk, b.context.stream);
    b.kernel("classifier", s.N / s.chunk, 0, 4.0 * s.chunk * s.Vp, [&] {
        classifier(logits, losses, targets.data(), s.chunk, s.V, s.Vp, 1.0f / s.N, true, b.context.stream);
    });
}

void step_optimizer(Bench& b, const StepShape& s) {
    const Stream& stream = b.context.stream;
    Memory& m = b.memory;
    const int64_t P = decoder_params(s.config).size();
    float* master = m.take<float>(P);
    float* first = m.take<float>(P);
    float* second = m.take<float>(P);
    float* grad = m.take<float>(P);
    T* work = m.take<T>(P);
    Buffer<StepControl> control(b.gpu ? 1 : 0);
    const StepControl tenth{
        .grad_norm = 1.0f, .scale = 1.0f, .updates = 10, .bias_correction1 = 0.65f, .bias_correction2 = 0.4f};
    if (b.gpu) {
        upload(control.data(), &tenth, 1, stream);
        zero(second, P, stream);  // the root of a negative number takes another path through the kernel
    }
    b.kernel("AdamW", 1, 0, 30.0 * static_cast<double>(P), [&] {
        adamw_update(master, work, first, second, grad, control.data(), P, {3e-4f, 1.0f, 0.1f}, {0.9f, 0.95f, 1e-8f},
                     stream);
    });
    grad = m.take<float>(P);
    float* sum = m.take<float>(1);
    void* scratch = m.scratch(reduce_scratch_bytes());
    b.kernel("gradient norm", 1, 0, 4.0 * static_cast<double>(P),
             [&] { reduce_sum_squares(sum, scratch, grad, P, false, stream); });
}

void copy_bandwidth(Bench& b) {
    const int64_t n = int64_t{1} << 30;
    std::byte* to = b.memory.take<std::byte>(n);
    std::byte* from = b.memory.take<std::byte>(n);
    b.kernel("copy", 0, 0, 2.0 * static_cast<double>(n), [&] { copy(to, from, n, b.context.stream); });
}

}  // namespace

int main(int argc, char** argv) {
    return bench::run_main([&] {
        const std::vector<std::string> words(argv + 1, argv + argc);
        const bool list = words == std::vector<std::string>{"--list"};
        const bool named = words.size() == 2 && words[0] == "--input-file";
        CHECK_USAGE(words.empty() || list || named, "bench_gpu: takes no arguments, --list, or --input-file FILE");
        const DeviceInfo info = device_info();
        fmt::print(R"({{"kind": "device", "name": "{}", "gpu": {}, "peak_bf16_flops": {:.0f}, )"
                   R"("h200_flops": {:.0f}, "h200_bytes": {:.0f}}})"
                   "\n",
                   info.name, info.is_gpu, info.peak_bf16_flops, kH200.tflops * 1e12, kH200.gb_per_s * 1e9);
        Bench bench(info.is_gpu && !list, named ? read_names(argv[2]) : std::nullopt);
        attention(bench);
        const StepShape step;
        for (auto measure : {step_products, step_attention, step_norms, step_gelu, step_classifier, step_optimizer})
            measure(bench, step);
        copy_bandwidth(bench);
    });
}
