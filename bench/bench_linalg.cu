// Measures the GEMM throughput of this machine's backend for the shapes of a small GPT-2 (C = 256, 8 sequences of 256
// tokens), of Newton-Schulz iterations and of GPT-2 124M's output layer. Prints the median and the best rate for each
// shape and, on a CPU, the rate of a core by processor time (bench/benchmark.h). On a GPU, then the symmetric products
// of GPT-2 124M's, LLaMA 1B's and larger stacks: by the library's full product and by each of our kernels, in FLOPs of
// the full product, and by the library's blocks up to the diagonal, which are then mirrored.
#include <fmt/core.h>

#include <string_view>
#include <utility>
#include <vector>

#include "bench/benchmark.h"
#include "runtime/linalg/linalg.h"
#include "runtime/linalg/symmetric_product.h"

using namespace teon;

namespace {

struct Shape {
    const char* name;
    int M, N, K;
    bool trans_a, trans_b;
    int batch = 1;
    float beta = 0.0f;
    Epilogue epilogue = Epilogue::none;
    bool symmetric = false;
};

const Shape kShapes[] = {
    {"qkv forward", 2048, 768, 256, false, true, 1, 0.0f, Epilogue::bias},
    {"projection forward", 2048, 256, 256, false, true, 1, 0.0f, Epilogue::bias},
    {"mlp up forward", 2048, 1024, 256, false, true, 1, 0.0f, Epilogue::bias},
    {"mlp down forward", 2048, 256, 1024, false, true, 1, 0.0f, Epilogue::bias},
    {"qkv dX", 2048, 256, 768, false, false},
    {"projection dX", 2048, 256, 256, false, false},
    {"mlp up dX", 2048, 256, 1024, false, false},
    {"mlp down dX", 2048, 1024, 256, false, false},
    {"qkv dW", 768, 256, 2048, true, false, 1, 1.0f},
    {"projection dW", 256, 256, 2048, true, false, 1, 1.0f},
    {"mlp up dW", 1024, 256, 2048, true, false, 1, 1.0f},
    {"mlp down dW", 256, 1024, 2048, true, false, 1, 1.0f},
    {"mlp up dW, bias gradient", 1024, 256, 2048, true, false, 1, 1.0f, Epilogue::bias_grad},
    {"attention q k^T", 256, 256, 32, false, true, 64},
    {"attention p v", 256, 32, 256, false, false, 64},
    {"attention p^T dy", 256, 32, 256, true, false, 64},
    {"newton-schulz", 256, 256, 256, false, false, 8},
    {"newton-schulz", 512, 512, 512, false, false, 4},
    {"newton-schulz", 1024, 1024, 1024, false, false},
    {"newton-schulz x x^T", 256, 256, 256, false, true, 8, 0.0f, Epilogue::none, true},
    {"newton-schulz x x^T", 512, 512, 512, false, true, 4, 0.0f, Epilogue::none, true},
    {"newton-schulz x x^T", 1024, 1024, 1024, false, true, 1, 0.0f, Epilogue::none, true},
    {"logits, 256 tokens", 2048, 256, 256, false, true},
    {"logits, GPT-2", 512, 50304, 768, false, true},
};

template <typename T>
Buffer<T> random_buffer(int64_t n, const Stream& stream) {
    std::vector<T> values(n);
    uint32_t state = 1;
    for (T& x : values) {
        state = state * 1664525u + 1013904223u;
        x = T(static_cast<float>(state >> 8) / 16777216.0f - 0.5f);
    }
    Buffer<T> buffer(n);
    upload(buffer.data(), values.data(), n, stream);
    stream.synchronize();
    return buffer;
}

template <typename Run>
void print_row(const Shape& s, std::string_view name, std::string_view type, const Stream& stream, Run run) {
    const double flops = 2.0 * s.batch * s.M * s.N * s.K;
    const bench::Times ms = bench::measure(stream, run);
    fmt::print("{:<33} {:>5} {:>6} {:>5} {:>4}{:>2} {:>6} {:>6} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f}\n", name, s.M,
               s.N, s.K, s.trans_a ? 'T' : 'N', s.trans_b ? 'T' : 'N', s.batch, type, ms.median * 1e3,
               flops / ms.median / 1e6, flops / ms.best / 1e6, flops / ms.processor / 1e6);
}

template <typename T>
void measure(const Shape& s, Linalg& linalg) {
    const Stream& stream = linalg.stream();
    int64_t size_a = int64_t{s.M} * s.K;
    int64_t size_b = int64_t{s.N} * s.K;
    int64_t size_c = int64_t{s.M} * s.N;
    Buffer<T> A = random_buffer<T>(size_a * s.batch, stream);
    Buffer<T> B = random_buffer<T>(size_b * s.batch, stream);
    Buffer<T> C = random_buffer<T>(size_c * s.batch, stream);
    Buffer<T> bias = random_buffer<T>(s.N, stream);
    Buffer<float> bias_grad = random_buffer<float>(s.M, stream);

    Gemm g{.M = s.M, .N = s.N, .K = s.K, .trans_a = s.trans_a, .trans_b = s.trans_b};
    g.A = mat(A.data(), s.trans_a ? s.M : s.K, size_a);
    g.B = mat(B.data(), s.trans_b ? s.K : s.N, size_b);
    g.C = mat(C.data(), s.N, size_c);
    g.beta = s.beta;
    g.batch_inner = s.batch;
    g.epilogue = s.epilogue;
    g.bias = s.epilogue == Epilogue::bias_grad ? mat(bias_grad.data(), s.M) : mat(bias.data(), s.N);
    g.symmetric = s.symmetric;

    print_row(s, s.name, name_of(dtype_of<T>), stream, [&] { linalg.gemm(g); });
}

// X X^T of `batch` matrices of side x side.
void measure_symmetric(int side, int batch, Linalg& linalg) {
    const Stream& stream = linalg.stream();
    const Shape s{"library's full product", side, side, side, false, true, batch};
    const int64_t size = int64_t{side} * side;
    Buffer<f16> X = random_buffer<f16>(size * batch, stream);
    Buffer<f16> C(size * batch);
    Gemm g{.M = side, .N = side, .K = side, .trans_b = true};
    g.A = g.B = mat(X.data(), side, size);
    g.C = mat(C.data(), side, size);
    g.beta = 0.0f;
    g.batch_inner = batch;
    print_row(s, s.name, "f16", stream, [&] { linalg.gemm(g); });
    g.symmetric = true;
    for (const SymmetricKernel* kernel : symmetric_kernels(g, g.C, stream))
        print_row(s, kernel->name, "f16", stream, [&] { kernel->run(g, g.C, stream); });
    print_row(s, "what the rule chooses", "f16", stream, [&] { linalg.gemm(g); });
}

}  // namespace

int main() {
    return bench::run_main([] {
        const DeviceInfo info = device_info();
        fmt::print("{} backend, {}, {} {}\n", backend_name(), info.name, info.multiprocessors,
                   info.is_gpu ? "multiprocessors" : "threads");
        fmt::print("{:<33} {:>5} {:>6} {:>5} {:>6} {:>6} {:>6} {:>10} {:>10} {:>10} {:>10}\n", "", "M", "N", "K", "op",
                   "batch", "type", "median us", "GFLOP/s", "best", "of a core");
        Stream stream;
        Linalg linalg(stream);
        for (const Shape& s : kShapes) measure<float>(s, linalg);
        for (const Shape& s : kShapes) measure<bf16>(s, linalg);
        if (!info.is_gpu) return;
        for (auto [side, batch] : {std::pair{768, 12}, {768, 18}, {2048, 22}, {4096, 1}, {4096, 8}})
            measure_symmetric(side, batch, linalg);
    });
}
