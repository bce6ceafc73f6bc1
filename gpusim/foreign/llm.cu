// Kernels of llm.c's dev/cuda, at sizes that a CPU runs in seconds. Each file is a program of its own, with the macros
// SUBJECT="gelu_forward.cu" and OF_gelu_forward. Arguments: numbers of kernels.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#define main main_of_theirs
#include SUBJECT
#undef main

#include "host.h"

using namespace foreign;
using Doubles = std::vector<double>;

namespace {

constexpr double kLimit = 1e-5;  // float's rounding in sums of a few hundred terms

// The type of the file's tensors, with the error that rounding to it causes.
#if defined(OF_softmax_forward) || defined(OF_layernorm_forward) || defined(OF_classifier_fused) || \
    defined(OF_adamw) || defined(OF_attention_forward) || defined(OF_matmul_forward)
using Value = float;
#else
using Value = floatX;
#endif
const double kError = sizeof(Value) == 2 ? 0.004 : kLimit;

// Floats that a Value holds exactly.
std::vector<float> random_floats(size_t count, uint64_t seed) {
    std::vector<float> floats;
    for (const Value value : random_values<Value>(count, seed)) floats.push_back(static_cast<float>(value));
    return floats;
}
std::vector<Value> narrowed(const std::vector<float>& floats) {
    std::vector<Value> values;
    for (const float x : floats) values.push_back(static_cast<Value>(x));
    return values;
}

std::string name_of(const char* what, int kernel, int block) {
    return std::string("llm.c ") + what + " " + std::to_string(kernel) + ", blocks of " + std::to_string(block);
}

struct Row {
    double mean, rstd;
};
Row statistics(const float* x, int columns) {
    double mean = 0;
    double variance = 0;
    for (int c = 0; c < columns; ++c) mean += x[c] / double(columns);
    for (int c = 0; c < columns; ++c) variance += (x[c] - mean) * (x[c] - mean) / columns;
    return {mean, 1 / std::sqrt(variance + 1e-5)};
}

#ifdef OF_softmax_forward
bool run(int kernel, int block) {
    const int rows = 24;
    const int columns = 1100;
    const auto x = random_floats(size_t(rows) * columns, 1);
    const Device<Value> in(narrowed(x));
    const Device<Value> out(x.size());
    softmax_forward(kernel, out.data(), in.data(), rows, columns, block);
    Doubles y(x.size());
    for (int r = 0; r < rows; ++r) {
        double sum = 0;
        for (int c = 0; c < columns; ++c) sum += std::exp(double(x[size_t(r) * columns + c]));
        for (int c = 0; c < columns; ++c)
            y[size_t(r) * columns + c] = std::exp(double(x[size_t(r) * columns + c])) / sum;
    }
    return row(name_of("softmax_forward", kernel, block).c_str(), out.doubles(), y, kError);
}
#elif defined(OF_layernorm_forward)
bool run(int kernel, int block) {
    const int B = 2;
    const int T = 24;
    const int C = 768;
    const int rows = B * T;
    const auto x = random_floats(size_t(rows) * C, 1);
    const auto w = random_floats(C, 2);
    const auto b = random_floats(C, 3);
    const Device<Value> in(narrowed(x));
    const Device<Value> weight(narrowed(w));
    const Device<Value> bias(narrowed(b));
    const Device<Value> out(x.size());
    const Device<Value> mean(rows);
    const Device<Value> rstd(rows);
    layernorm_forward(kernel, out.data(), mean.data(), rstd.data(), in.data(), weight.data(), bias.data(), B, T, C,
                      block);
    Doubles y(x.size());
    for (int r = 0; r < rows; ++r) {
        const Row s = statistics(&x[size_t(r) * C], C);
        for (int c = 0; c < C; ++c) y[size_t(r) * C + c] = (x[size_t(r) * C + c] - s.mean) * s.rstd * w[c] + b[c];
    }
    return row(name_of("layernorm_forward", kernel, block).c_str(), out.doubles(), y, kError);
}
#elif defined(OF_layernorm_backward)
bool run(int kernel, int block) {
    const int B = 2;
    const int T = 24;
    const int C = 768;
    const int rows = B * T;
    const auto x = random_floats(size_t(rows) * C, 1);
    const auto dy = random_floats(size_t(rows) * C, 2);
    const auto w = random_floats(C, 3);
    std::vector<float> means(rows);
    std::vector<float> rstds(rows);
    Doubles dx(x.size());
    Doubles dw(C);
    Doubles db(C);
    for (int r = 0; r < rows; ++r) {
        const Row s = statistics(&x[size_t(r) * C], C);
        means[r] = float(s.mean);
        rstds[r] = float(s.rstd);
        const auto normed = [&](int c) { return (x[size_t(r) * C + c] - s.mean) * s.rstd; };
        double sum = 0;
        double scaled_sum = 0;
        for (int c = 0; c < C; ++c) {
            const double g = double(dy[size_t(r) * C + c]) * w[c];
            sum += g / C;
            scaled_sum += g * normed(c) / C;
            dw[c] += dy[size_t(r) * C + c] * normed(c);
            db[c] += dy[size_t(r) * C + c];
        }
        for (int c = 0; c < C; ++c)
            dx[size_t(r) * C + c] = (double(dy[size_t(r) * C + c]) * w[c] - sum - normed(c) * scaled_sum) * s.rstd;
    }
    const Device<Value> in(narrowed(x));
    const Device<Value> d_out(narrowed(dy));
    const Device<Value> weight(narrowed(w));
    const Device<Value> mean(narrowed(means));
    const Device<Value> rstd(narrowed(rstds));
    const Device<Value> d_in(x.size());
    const Device<Value> d_weight(C);
    const Device<Value> d_bias(C);
    const Device<float> scratch(size_t(1024) / 32 * cuda_num_SMs * (2 * C + 1));
    layernorm_backward(kernel, d_in.data(), d_weight.data(), d_bias.data(), scratch.data(), d_out.data(), in.data(),
                       weight.data(), mean.data(), rstd.data(), B, T, C, block);
    const std::string name = name_of("layernorm_backward", kernel, block);
    // The third and fourth kernel add in bf16.
    const double limit = kernel == 3 || kernel == 4 ? 3 * kError : kError;
    return row((name + ", input").c_str(), d_in.doubles(), dx, kError) &
           row((name + ", weight").c_str(), d_weight.doubles(), dw, limit) &
           row((name + ", bias").c_str(), d_bias.doubles(), db, limit);
}
#elif defined(OF_residual_forward)
bool run(int kernel, int block) {
    const size_t count = 8 * 1024;
    const auto a = random_floats(count, 1);
    const auto b = random_floats(count, 2);
    const Device<Value> da(narrowed(a));
    const Device<Value> db(narrowed(b));
    const Device<Value> out(count);
    residual_forward(kernel, out.data(), da.data(), db.data(), int(count), block);
    Doubles y(count);
    for (size_t k = 0; k < count; ++k) y[k] = double(a[k]) + b[k];
    return row(name_of("residual_forward", kernel, block).c_str(), out.doubles(), y, kError);
}
#elif defined(OF_gelu_forward) || defined(OF_gelu_backward)
constexpr int kB = 2;
constexpr int kT = 16;
constexpr int kC = 256;
double gelu_of(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
#ifdef OF_gelu_forward
bool run(int kernel, int block) {
    const auto x = random_floats(kB * kT * kC, 1);
    const Device<Value> in(narrowed(x));
    const Device<Value> out(x.size());
    gelu_forward(kernel, out.data(), in.data(), kB, kT, kC, block);
    Doubles y(x.size());
    for (size_t k = 0; k < x.size(); ++k) y[k] = gelu_of(x[k]);
    return row(name_of("gelu_forward", kernel, block).c_str(), out.doubles(), y, kError);
}
#else
bool run(int kernel, int block) {
    const auto x = random_floats(kB * kT * kC, 1);
    const auto dy = random_floats(x.size(), 2);
    const Device<Value> in(narrowed(x));
    const Device<Value> d_out(narrowed(dy));
    const Device<Value> d_in(x.size());
    gelu_backward(kernel, d_in.data(), in.data(), d_out.data(), kB, kT, kC, block);
    Doubles dx(x.size());
    constexpr double h = 1e-4;
    for (size_t k = 0; k < x.size(); ++k) dx[k] = dy[k] * (gelu_of(x[k] + h) - gelu_of(x[k] - h)) / (2 * h);
    return row(name_of("gelu_backward", kernel, block).c_str(), d_in.doubles(), dx, kError);
}
#endif
#elif defined(OF_classifier_fused)
bool run(int kernel, int block) {
    const int B = 2;
    const int T = 12;
    const int V = 1013;
    const int P = 1024;  // V, padded
    const int rows = B * T;
    const auto x = random_floats(size_t(rows) * P, 1);
    const auto weights = random_floats(rows, 2);
    std::vector<int> targets(rows);
    for (int r = 0; r < rows; ++r) targets[r] = (r * 37 + 5) % V;
    Doubles losses(rows);
    for (int r = 0; r < rows; ++r) {
        double sum = 0;
        for (int c = 0; c < V; ++c) sum += std::exp(double(x[size_t(r) * P + c]));
        losses[r] = std::log(sum) - x[size_t(r) * P + targets[r]];
    }
    const Device<Value> in(narrowed(x));
    const Device<float> d_losses(weights);
    const Device<int> device_targets(targets);
    const Device<float> d_logits(x.size());
    const Device<Value> out(rows);
    fused_classifier(kernel, d_logits.data(), out.data(), in.data(), d_losses.data(), device_targets.data(), B, T, V, P,
                     block);
    return row(name_of("classifier_fused", kernel, block).c_str(), out.doubles(), losses, kError);
}
#elif defined(OF_adamw)
bool run(int kernel, int) {
    const size_t count = 5000;
    const auto p = random_floats(count, 1);
    const auto g = random_floats(count, 2);
    const auto m = random_floats(count, 3);
    auto v = random_floats(count, 4);
    for (float& x : v) x = std::fabs(x);
    const Device<Value> dp(narrowed(p));
    const Device<Value> dg(narrowed(g));
    const Device<Value> dm(narrowed(m));
    const Device<Value> dv(narrowed(v));
    adamw(kernel, dp.data(), dg.data(), dm.data(), dv.data(), 10, long(count), 1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f);
    Doubles y(count);
    for (size_t k = 0; k < count; ++k) {
        const double m1 = 0.9 * m[k] + 0.1 * g[k];
        const double v1 = 0.999 * v[k] + 0.001 * g[k] * g[k];
        const double step = m1 / (1 - std::pow(0.9, 10)) / (std::sqrt(v1 / (1 - std::pow(0.999, 10))) + 1e-8);
        y[k] = p[k] - 1e-2 * (step + 0.1 * p[k]);
    }
    return row(name_of("adamw", kernel, 512).c_str(), dp.doubles(), y, kError);
}
#elif defined(OF_matmul_backward_bias)
bool run(int kernel, int block) {
    const int B = 2;
    const int T = 64;
    const int OC = 768;
    const auto dy = random_floats(size_t(B) * T * OC, 1);
    const Device<Value> d_out(narrowed(dy));
    const Device<Value> d_bias(OC);
    matmul_backward_bias(kernel, d_bias.data(), d_out.data(), B, T, OC, block);
    Doubles db(OC);
    for (int r = 0; r < B * T; ++r)
        for (int c = 0; c < OC; ++c) db[c] += dy[size_t(r) * OC + c];
    return row(name_of("matmul_backward_bias", kernel, block).c_str(), d_bias.doubles(), db, kError);
}
#elif defined(OF_global_norm)
bool run(int kernel, int block) {
    const size_t count = 20000;
    const auto x = random_floats(count, 1);
    const Device<Value> in(narrowed(x));
    const Device<float> out(64 * 1024);
    global_norm(kernel, out.data(), in.data(), count, block);
    double sum = 0;
    for (const float v : x) sum += double(v) * v;
    return row(name_of("global_norm", kernel, block).c_str(), {out.doubles()[0]}, {sum}, kLimit);
}
#elif defined(OF_attention_forward)
bool run(int kernel, int block) {
    const int B = 1;
    const int T = 64;
    const int C = 128;
    const int NH = 2;
    const int size = C / NH;
    const auto x = random_floats(size_t(B) * T * 3 * C, 1);
    const Device<Value> in(narrowed(x));
    const Device<Value> out(size_t(B) * T * C);
    const Device<float> stats(size_t(B) * NH * T);
    const Device<float> sums(size_t(B) * T * C);
    const Device<float> qkv(size_t(B) * T * 3 * C);
    const Device<float> before(size_t(B) * NH * T * T);
    const Device<float> weights(size_t(B) * NH * T * T);
    attention_forward(kernel, out.data(), stats.data(), sums.data(), qkv.data(), before.data(), weights.data(),
                      in.data(), B, T, C, NH, block);
    Doubles y(size_t(T) * C);
    const auto at = [&](int t, int part, int h, int c) {
        return double(x[size_t(t) * 3 * C + size_t(part) * C + h * size + c]);
    };
    for (int h = 0; h < NH; ++h)
        for (int t = 0; t < T; ++t) {
            Doubles p(t + 1);
            double sum = 0;
            for (int s = 0; s <= t; ++s) {
                double dot = 0;
                for (int c = 0; c < size; ++c) dot += at(t, 0, h, c) * at(s, 1, h, c);
                p[s] = std::exp(dot / std::sqrt(double(size)));
                sum += p[s];
            }
            for (int s = 0; s <= t; ++s)
                for (int c = 0; c < size; ++c) y[size_t(t) * C + h * size + c] += p[s] / sum * at(s, 2, h, c);
        }
    // From the fifth kernel on, P and the heads' outputs are bf16 between kernels.
    return row(name_of("attention_forward", kernel, block).c_str(), out.doubles(), y, kernel < 5 ? kError : 0.01);
}
#elif defined(OF_matmul_forward)
bool run(int kernel, int) {
    const int B = 2;
    const int T = 64;
    const int C = 128;
    const int OC = 256;
    const auto x = random_floats(size_t(B) * T * C, 1);
    const auto w = random_floats(size_t(OC) * C, 2);
    const auto b = random_floats(OC, 3);
    const Device<Value> in(narrowed(x));
    const Device<Value> weight(narrowed(w));
    const Device<Value> bias(narrowed(b));
    const Device<Value> out(size_t(B) * T * OC);
    matmul_forward(kernel, out.data(), in.data(), weight.data(), bias.data(), B, T, C, OC, 16);
    auto y = matrix_product(
        B * T, OC, C, [&](int i, int l) { return double(x[size_t(i) * C + l]); },
        [&](int l, int j) { return double(w[size_t(j) * C + l]); });
    for (size_t k = 0; k < y.size(); ++k) y[k] += b[k % OC];
    return row(name_of("matmul_forward", kernel, 256).c_str(), out.doubles(), y, kError);
}
#elif defined(OF_encoder_forward)
bool run(int kernel, int block) {
    const int B = 2;
    const int T = 16;
    const int C = 128;
    const int V = 50;
    const auto wte = random_floats(size_t(V) * C, 1);
    const auto wpe = random_floats(size_t(T) * C, 2);
    std::vector<int> tokens(B * T);
    for (int k = 0; k < B * T; ++k) tokens[k] = (k * 13 + 7) % V;
    const Device<int> in(tokens);
    const Device<Value> device_wte(narrowed(wte));
    const Device<Value> device_wpe(narrowed(wpe));
    const Device<Value> out(size_t(B) * T * C);
    encoder_forward(kernel, out.data(), in.data(), device_wte.data(), device_wpe.data(), B, T, C, block);
    Doubles y(size_t(B) * T * C);
    for (size_t k = 0; k < y.size(); ++k)
        y[k] = double(wte[size_t(tokens[k / C]) * C + k % C]) + wpe[k / C % T * C + k % C];
    return row(name_of("encoder_forward", kernel, block).c_str(), out.doubles(), y, kError);
}
#elif defined(OF_fused_residual_forward)
bool run(int kernel, int block) {
    const int rows = 48;
    const int C = 768;
    const auto a = random_floats(size_t(rows) * C, 1);
    const auto b = random_floats(size_t(rows) * C, 2);
    const auto w = random_floats(C, 3);
    const auto shift = random_floats(C, 4);
    const Device<Value> da(narrowed(a));
    const Device<Value> db(narrowed(b));
    const Device<Value> weight(narrowed(w));
    const Device<Value> bias(narrowed(shift));
    const Device<Value> sum(a.size());
    const Device<Value> normed(a.size());
    const Device<Value> mean(rows);
    const Device<Value> rstd(rows);
    fused_residual_forward(kernel, sum.data(), normed.data(), mean.data(), rstd.data(), da.data(), db.data(),
                           weight.data(), bias.data(), rows, C, block);
    Doubles y(a.size());
    std::vector<float> x(a.size());
    for (size_t k = 0; k < a.size(); ++k) x[k] = a[k] + b[k];
    for (int r = 0; r < rows; ++r) {
        const Row s = statistics(&x[size_t(r) * C], C);
        for (int c = 0; c < C; ++c) y[size_t(r) * C + c] = (x[size_t(r) * C + c] - s.mean) * s.rstd * w[c] + shift[c];
    }
    return row(name_of("fused_residual_forward", kernel, block).c_str(), normed.doubles(), y, kError);
}
#endif

}  // namespace

// "KERNEL:BLOCK ..." for each kernel and size of its blocks.
int main(int count, char** arguments) {
    setup_main();
#ifdef OF_global_norm
    cudaGetDeviceProperties(&deviceProp, 0);
#endif
    bool right = true;
    for (int k = 1; k < count; ++k) {
        const char* const colon = std::strchr(arguments[k], ':');
        right &= run(std::atoi(arguments[k]), colon ? std::atoi(colon + 1) : 128);
    }
    return right ? 0 : 1;
}
