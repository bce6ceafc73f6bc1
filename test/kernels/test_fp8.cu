#include "kernels/activation.h"
#include "kernels/fp8.h"

#include <cfloat>
#include <cmath>

#include "kernels/norm.h"
#include "test/oracle/format.h"
#include "test/support/catch.h"
#include "test/support/compare.h"

using namespace teon;
using namespace teon::test;

namespace {

float found_maximum(const std::vector<bf16>& x) {
    float largest = 0;
    for (const bf16 v : x) largest = std::max(largest, std::abs(static_cast<float>(v)));
    return largest;
}

// Compares the copies of x (rows, cols) with the format's rounding of each element, at addresses `offset` elements
// after aligned ones.
template <typename F>
void check_cast(const std::vector<bf16>& x, int rows, int cols, float maximum, bool plain, bool transposed,
                int offset = 0) {
    CAPTURE(name_of(dtype_of<F>), rows, cols, maximum, plain, transposed, offset);
    const Stream stream;
    const int64_t n = int64_t{rows} * cols;
    std::vector<bf16> shifted(static_cast<size_t>(offset), bf16(0.0f));
    shifted.insert(shifted.end(), x.begin(), x.end());
    Guarded<bf16> X(shifted, stream);
    Guarded<F> y(n + offset, stream);
    Guarded<F> yt(n + offset, stream);
    Guarded<float> x_maximum(std::vector<float>{maximum}, stream);
    Guarded<float> scale(1, stream);
    cast_fp8(plain ? y.data() + offset : nullptr, transposed ? yt.data() + offset : nullptr, scale.data(),
             X.data() + offset, x_maximum.data(), rows, cols, stream);
    const Format format = kFormat<F>;
    const auto largest = static_cast<float>(format.decode(format.largest));
    const float s = maximum == 0.0f ? 1.0f : std::min(largest / maximum, FLT_MAX);
    REQUIRE(scale.get()[0] == 1.0f / s);
    const std::vector<F> copy = y.get();
    const std::vector<F> other = yt.get();
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < cols; ++j) {
            const int64_t at = int64_t{i} * cols + j;
            const int expected = format.round(static_cast<float>(x[static_cast<size_t>(at)]) * s);
            CAPTURE(i, j);
            if (plain) REQUIRE(copy[static_cast<size_t>(offset + at)].bits == expected);
            if (transposed) REQUIRE(other[static_cast<size_t>(offset + int64_t{j} * rows + i)].bits == expected);
        }
}

}  // namespace

TEST_CASE("kernels/fp8: absolute_maximum never lowers the maximum, NaN is greatest, at all sizes and alignments") {
    const Stream stream;
    const auto maximum = [&](const std::vector<bf16>& x, float before, int offset = 0) {
        Guarded<bf16> X(x, stream);
        Guarded<float> largest(std::vector<float>{before}, stream);
        absolute_maximum(largest.data(), X.data() + offset, std::ssize(x) - offset, stream);
        return largest.get()[0];
    };
    for (const int n : {1, 31, 32, 33, 1000, 40000, 100003}) {
        CAPTURE(n);
        for (const int at : {0, n / 2, n - 1}) {
            auto x = random_values<bf16>(n, n);
            x[at] = bf16(-100.5f);
            REQUIRE(maximum(x, 0) == 100.5f);
            REQUIRE(maximum(x, 101) == 101);
            if (at > 0) REQUIRE(maximum(x, 0, 1) == 100.5f);
            x[at] = bf16(-INFINITY);
            REQUIRE(maximum(x, 0) == INFINITY);
            x[n - 1 - at] = bf16(NAN);
            REQUIRE(std::isnan(maximum(x, 0)));
        }
    }
    REQUIRE(maximum(std::vector<bf16>(100, bf16(-0.0f)), 0) == 0);
}

TEMPLATE_TEST_CASE("kernels/fp8: both copies round as the format does, also at odd shapes and addresses", "", e4m3,
                   e5m2) {
    const std::pair<int, int> shapes[] = {{1, 1},    {31, 33}, {64, 64}, {65, 130},
                                          {96, 160}, {48, 80}, {129, 8}, {16, 300}};
    for (const auto& [rows, cols] : shapes) {
        const auto x = random_values<bf16>(int64_t{rows} * cols, rows + cols, 0.02);
        const float largest = found_maximum(x);
        check_cast<TestType>(x, rows, cols, largest, true, true);
        check_cast<TestType>(x, rows, cols, largest, true, false);
        check_cast<TestType>(x, rows, cols, largest, false, true);
        check_cast<TestType>(x, rows, cols, largest, true, true, 1);
    }
}

TEMPLATE_TEST_CASE("kernels/fp8: zeros, the largest and the smallest numbers have a finite scale", "", e4m3, e5m2) {
    check_cast<TestType>(std::vector<bf16>(64, bf16(0.0f)), 8, 8, 0.0f, true, true);
    check_cast<TestType>(std::vector<bf16>(64, bf16(3e38f)), 8, 8, static_cast<float>(bf16(3e38f)), true, true);
    check_cast<TestType>(std::vector<bf16>(64, bf16(1e-40f)), 8, 8, static_cast<float>(bf16(1e-40f)), true, true);
}

TEMPLATE_TEST_CASE("kernels/fp8: infinity and NaN become NaN, and so do products with the scale", "", e4m3, e5m2) {
    const Stream stream;
    for (const float bad : {INFINITY, NAN}) {
        auto x = random_values<bf16>(256, 3);
        x[100] = bf16(bad);
        Guarded<bf16> X(x, stream);
        Guarded<TestType> y(256, stream);
        Guarded<TestType> yt(256, stream);
        Guarded<float> largest(std::vector<float>{0.0f}, stream);
        Guarded<float> scale(1, stream);
        absolute_maximum(largest.data(), X.data(), 256, stream);
        cast_fp8(y.data(), yt.data(), scale.data(), X.data(), largest.data(), 16, 16, stream);
        REQUIRE(std::isnan(static_cast<float>(y.get()[100])));
        REQUIRE(std::isnan(static_cast<float>(yt.get()[4 * 16 + 6])));
        REQUIRE(std::isnan(scale.get()[0] * static_cast<float>(y.get()[0])));
    }
}

// Rows that a thread or a warp processes, and rows with vectors of one element.
TEST_CASE("kernels/fp8: norms and activation functions find the maximum of the tensor that they write") {
    using T = bf16;
    const Stream stream;
    const std::pair<int, int> shapes[] = {{1, 1}, {37, 33}, {70, 256}, {5, 1024}, {5, 4096}, {3, 8192}};
    for (const auto& shape : shapes) {
        const int N = shape.first;
        const int C = shape.second;
        CAPTURE(N, C);
        const int64_t n = int64_t{N} * C;
        Guarded<T> x(random_values<T>(2 * n, 1, 3.0), stream);
        Guarded<T> dout(random_values<T>(n, 2, 0.01), stream);
        Guarded<T> weight(random_values<T>(C, 3), stream);
        Guarded<T> out(2 * n, stream);
        Guarded<float> mean(N, stream);
        Guarded<float> rstd(N, stream);
        Guarded<float> dweight(C, stream);
        Guarded<float> dbias(C, stream);
        const auto check = [&](int64_t written, auto op) {
            Guarded<float> largest(std::vector<float>{0.0f}, stream);
            op(largest.data());
            std::vector<T> values = out.get();
            values.resize(static_cast<size_t>(written));
            float expected = 0;
            for (const T v : values) expected = std::max(expected, std::abs(static_cast<float>(v)));
            REQUIRE(largest.get()[0] == expected);
        };
        const auto scratch = [&](size_t bytes) { return Guarded<std::byte>(static_cast<int64_t>(bytes), stream); };
        for (const NormFunction& row : kNorms) {
            const bool centered = row.centered;
            check(n, [&](float* m) {
                norm_forward<T>(row.kind,
                                {.out = out.data(),
                                 .mean = centered ? mean.data() : nullptr,
                                 .rstd = rstd.data(),
                                 .residual = centered ? nullptr : x.data() + n,
                                 .x = x.data(),
                                 .weight = weight.data(),
                                 .bias = centered ? weight.data() : nullptr,
                                 .N = N,
                                 .C = C,
                                 .eps = 1e-5f,
                                 .maximum = m},
                                stream);
            });
            check(n, [&](float* m) {
                auto s = scratch(norm_backward_scratch_bytes(row.kind, N, C));
                norm_backward<T>(row.kind,
                                 {.dx = out.data(),
                                  .dweight = dweight.data(),
                                  .dbias = centered ? dbias.data() : nullptr,
                                  .scratch = s.data(),
                                  .dout = dout.data(),
                                  .dresidual = centered ? nullptr : dout.data(),
                                  .x = x.data(),
                                  .mean = centered ? mean.data() : nullptr,
                                  .rstd = rstd.data(),
                                  .weight = weight.data(),
                                  .N = N,
                                  .C = C,
                                  .accumulate = false,
                                  .maximum = m},
                                 stream);
            });
        }
        for (const ActivationFunction& row : kActivations) {
            check(n, [&](float* m) { activation_forward(row.kind, out.data(), x.data(), N, C, stream, m); });
            check(n * row.inputs(), [&](float* m) {
                auto s = scratch(activation_backward_scratch_bytes(row.kind, N, C));
                activation_backward(row.kind, out.data(), row.gated ? nullptr : dbias.data(), s.data(), x.data(),
                                    dout.data(), N, C, false, stream, m);
            });
        }
    }
}
