// Measures orthogonalization alone: five steps on batches of Gaussian matrices for each method and form. Prints the
// time, the predicted FLOPs and the error against float64. On the host it runs a tenth of each batch, in float and, if
// the CPU multiplies it in hardware, in bf16.
//   make bench, or build/cpu/bench/bench_ortho [ROWS]   skips matrices with more than ROWS rows (default 1280 on the
//                                                       host, where 2048 takes minutes)
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "base/integer.h"
#include "bench/benchmark.h"
#include "optim/ns_coefficients.h"
#include "optim/orthogonalize.h"
#include "runtime/context.h"
#include "runtime/linalg/library.h"

using namespace teon;

namespace {

struct Shape {
    int batch, rows, cols;
};
constexpr Shape kShapes[] = {{48, 768, 768}, {18, 768, 1536}, {24, 768, 3072}, {144, 1280, 1280}, {96, 2048, 2048}};

// A matrix of Frobenius norm 1.
std::vector<double> gaussian(const Shape& s) {
    std::mt19937_64 engine(1);
    std::normal_distribution<double> normal;
    std::vector<double> x(static_cast<size_t>(s.rows) * s.cols);
    double norm = 0;
    for (double& v : x) {
        v = normal(engine);
        norm += v * v;
    }
    for (double& v : x) v /= std::sqrt(norm);
    return x;
}

// C += A B, float64. A (m x k), B (k x n).
void add_product(std::vector<double>& C, const std::vector<double>& A, const std::vector<double>& B, int m, int n,
                 int k) {
    constexpr int kBlock = 64;
    for (int i0 = 0; i0 < m; i0 += 8) {
        for (int p0 = 0; p0 < k; p0 += kBlock)
            for (int i = i0; i < std::min(m, i0 + 8); ++i)
                for (int p = p0; p < std::min(k, p0 + kBlock); ++p) {
                    const double a = A[size_t(i) * k + p];
                    const double* b = &B[size_t(p) * n];
                    double* c = &C[size_t(i) * n];
                    for (int j = 0; j < n; ++j) c[j] += a * b[j];
                }
    }
}

// The same steps in float64, for a wide matrix.
std::vector<double> reference(std::vector<double> X, const Shape& s, const OrthoMethod& method) {
    const NsSet set = ns_set(method.ortho);
    const size_t side = s.rows;
    for (double& v : X) v /= set.margin;
    for (int t = 0; t < method.ns_steps; ++t) {
        const NsTriple q = set.at(t);
        std::vector<double> transposed(X.size());
        std::vector<double> R(side * side);
        std::vector<double> Z(side * side);
        std::vector<double> Y = X;
        for (int i = 0; i < s.rows; ++i)
            for (int j = 0; j < s.cols; ++j) transposed[size_t(j) * s.rows + i] = X[size_t(i) * s.cols + j];
        add_product(R, X, transposed, s.rows, s.rows, s.cols);
        add_product(Z, R, R, s.rows, s.rows, s.rows);
        for (size_t i = 0; i < Z.size(); ++i) Z[i] = q.b * R[i] + q.c * Z[i];
        for (double& v : Y) v *= q.a;
        add_product(Y, Z, X, s.rows, s.cols, s.rows);
        X = std::move(Y);
    }
    return X;
}

struct Result {
    double ms, error;
};

// Returns the median time of one call on the batch, and the relative Frobenius distance of the first matrix to
// `expected`.
template <typename T>
Result measure(const Shape& s, const OrthoMethod& method, const std::vector<double>& x,
               const std::vector<double>& expected, Context& context) {
    const int align = method.row_alignment();
    const MatrixBatch batch{s.batch, s.rows, s.cols, round_up(s.cols, align)};
    std::vector<T> values(static_cast<size_t>(batch.size()), T(0.0f));
    for (int b = 0; b < s.batch; ++b)
        for (int i = 0; i < s.rows; ++i)
            for (int j = 0; j < s.cols; ++j)
                values[(size_t(b) * s.rows + i) * batch.ld + j] =
                    T(static_cast<float>(x[size_t(i) * s.cols + j] / method.margin()));
    Buffer<T> X(batch.size());
    Buffer<std::byte> scratch(ortho_scratch_bytes(method, batch));
    std::vector<double> times;
    const T* result = nullptr;
    Event from;
    Event to;
    for (double spent = 0; times.size() < 3 || (times.size() < 20 && spent < 2000);) {
        upload(X.data(), values.data(), batch.size(), context.stream);
        context.stream.synchronize();
        from.record(context.stream);
        result = static_cast<const T*>(orthogonalize(X.data(), scratch.data(), batch, method, context));
        to.record(context.stream);
        to.synchronize();
        times.push_back(Event::milliseconds(from, to));
        spent += times.back();
        if (spent > 10000) break;
    }
    std::sort(times.begin(), times.end());
    download(values.data(), result, batch.stride(), context.stream);
    context.stream.synchronize();
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        const double y = static_cast<double>(static_cast<float>(values[i / s.cols * batch.ld + i % s.cols]));
        difference += (y - expected[i]) * (y - expected[i]);
        norm += expected[i] * expected[i];
    }
    return {times[times.size() / 2], expected.empty() ? NAN : std::sqrt(difference / norm)};
}

void report(const Shape& s, const OrthoMethod& method, const std::vector<double>& x,
            const std::vector<double>& expected, Context& context) {
    const Result r =
        visit_dtype(method.dtype, [&]<typename T>(T) { return measure<T>(s, method, x, expected, context); });
    const double gflop = s.batch * ortho_flops(method, s.rows, s.cols) * 1e-9;
    fmt::print("{:>4} x {:>4} x {:<5} {:<6} {:<14} {:<9} {:>10.2f} {:>10.1f} {:>10.1f}  {}\n", s.batch, s.rows, s.cols,
               name_of(method.dtype), name_of(method.ortho), method.ortho == Ortho::svd ? "-" : name_of(method.form),
               r.ms, gflop, gflop / r.ms * 1e3, std::isnan(r.error) ? "-" : fmt::format("{:.1e}", r.error));
    std::fflush(stdout);
}

void run(int rows) {
    Context context;
    const bool gpu = device_info().is_gpu;
    fmt::print("{} backend, {}; five steps; error: Frobenius distance to float64, relative\n", backend_name(),
               device_info().name);
    fmt::print("{:<18} {:<6} {:<14} {:<9} {:>10} {:>10} {:>10}  {}\n", "batch", "type", "method", "form", "ms", "GFLOP",
               "GFLOP/s", "error");
    const DType second = gpu ? DType::f16 : DType::f32;
    const std::vector dtypes = linalg_library().bf16 ? std::vector{DType::bf16, second} : std::vector{second};
    for (Shape s : kShapes) {
        if (s.rows > rows) continue;
        if (!gpu) s.batch = ceil_div(s.batch, 10);
        const std::vector<double> x = gaussian(s);
        for (Ortho ortho : {Ortho::jordan, Ortho::you, Ortho::polar_express}) {
            const std::vector<double> expected = reference(x, s, {.ortho = ortho});
            for (DType dtype : dtypes)
                for (NsForm form : {NsForm::standard, NsForm::gram})
                    report(s, {ortho, 5, form, dtype}, x, expected, context);
        }
        Shape one = s;
        one.batch = 1;
        if (s.rows <= 768) report(one, {.ortho = Ortho::svd}, x, {}, context);
    }
}

}  // namespace

int main(int argc, char** argv) {
    return bench::run_main([&] {
        const int default_rows = device_info().is_gpu ? 2048 : 1280;
        const int rows = argc > 1 ? std::atoi(argv[1]) : default_rows;
        CHECK_USAGE(argc <= 2 && rows >= kShapes[0].rows, "bench_ortho [ROWS]: must be at least {}", kShapes[0].rows);
        run(rows);
    });
}
