// Products of FP8 operands.
#include <array>
#include <string>

#include "runtime/linalg/linalg.h"
#include "test/oracle/gemm.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/gemm_layout.h"
#include "test/support/gpu_sums.h"
#include "test/support/needs_fp8.h"
#include "test/support/on_gpu.h"

using namespace teon;
using namespace teon::test;

namespace {

// Checks C = 0.5 scales A B^T + beta addend + bias with FP8 operands.
template <typename FA, typename FB, typename TC>
void check_fp8(int M, int N, int K, float beta, bool biased) {
    CAPTURE(name_of(dtype_of<FA>), name_of(dtype_of<FB>), name_of(dtype_of<TC>), M, N, K, beta, biased);
    Stream stream;
    Linalg linalg(stream);
    const auto a = random_values<FA>(int64_t{M} * K, 1, 50.0);
    const auto b = random_values<FB>(int64_t{N} * K, 2, 50.0);
    const auto before = random_values<TC>(int64_t{M} * N, 3);
    const auto bias = random_values<TC>(N, 4);
    Guarded<FA> A(a, stream);
    Guarded<FB> B(b, stream);
    Guarded<TC> C(before, stream);
    Guarded<TC> Bias(bias, stream);
    const std::vector<float> scales = {0.01f, 0.003f};
    Guarded<float> scale_a(std::vector<float>{scales[0]}, stream);
    Guarded<float> scale_b(std::vector<float>{scales[1]}, stream);
    Gemm g{
        .M = M, .N = N, .K = K, .trans_b = true, .A = mat(A.data(), K), .B = mat(B.data(), K), .C = mat(C.data(), N)};
    g.alpha = 0.5f;
    g.beta = beta;
    g.A.scale = scale_a.data();
    g.B.scale = scale_b.data();
    if (biased) {
        g.epilogue = Epilogue::bias;
        g.bias = mat(Bias.data(), N);
    }
    linalg.gemm(g);
    auto expected = matmul_oracle(widen<Tracked>(a), widen<Tracked>(b), M, N, K, false, true);
    for (int64_t i = 0; i < std::ssize(expected); ++i) {
        expected[i] = fp8_sum(expected[i]) * Tracked(0.5 * double{scales[0]} * double{scales[1]});
        expected[i] = sum_of<TC>(expected[i], beta == 0.0f ? Tracked() : Tracked(beta) * static_cast<double>(before[i]),
                                 biased ? static_cast<double>(bias[i % N]) : 0.0);
    }
    REQUIRE(compare(C.get(), expected, kSumRoundings));
}

}  // namespace

TEST_CASE("runtime/linalg/linalg: products of FP8 agree with the oracle in all documented combinations") {
    NEEDS_FP8();
    for (const auto& [M, N, K] : {std::array{1, 16, 16}, {33, 48, 32}, {300, 272, 128}, {64, 16, 1200}})
        for (const float beta : {0.0f, 1.0f}) {
            check_fp8<e4m3, e4m3, float>(M, N, K, beta, false);
            check_fp8<e5m2, e4m3, float>(M, N, K, beta, false);
            check_fp8<e4m3, e5m2, float>(M, N, K, beta, false);
            check_fp8<e4m3, e4m3, bf16>(M, N, K, beta, true);
            check_fp8<e5m2, e4m3, bf16>(M, N, K, beta, true);
        }
}

TEMPLATE_TEST_CASE("runtime/linalg/linalg: one product of e4m3 and", "", e4m3, e5m2) {
    NEEDS_FP8();
    check_fp8<e4m3, TestType, float>(64, 128, 64, 0.0f, false);
}

TEST_CASE(
    "runtime/linalg/linalg: fast accumulation keeps 14 bits of the sums of FP8 products on a CPU, and works on a GPU") {
    NEEDS_FP8();
    Stream stream;
    Linalg linalg(stream);
    Guarded<float> one(std::vector<float>{1.0f}, stream);
    const auto multiply = [&](const std::vector<e4m3>& a, const std::vector<e4m3>& b, int M, int N, int K, bool fast) {
        Guarded<e4m3> A(a, stream);
        Guarded<e4m3> B(b, stream);
        Guarded<float> C(int64_t{M} * N, stream);
        Gemm g{.M = M,
               .N = N,
               .K = K,
               .trans_b = true,
               .A = mat(A.data(), K),
               .B = mat(B.data(), K),
               .C = mat(C.data(), N),
               .fast_accumulation = fast};
        g.A.scale = g.B.scale = one.data();
        linalg.gemm(g);
        return C.get();
    };
    // 2^14 and 63 ones: with 13 digits behind the leading one, no 1 is left of any one.
    std::vector<e4m3> row(16 * 64, e4m3(1.0f));
    std::vector<e4m3> column = row;
    for (int i = 0; i < 16; ++i) row[i * 64] = column[i * 64] = e4m3(128.0f);
    const std::vector<float> cut = multiply(row, column, 16, 16, 64, true);
    for (const float x : multiply(row, column, 16, 16, 64, false)) {
        REQUIRE(x <= 16384.0f + 63.0f);
        REQUIRE(x >= cut[0]);
    }
    if (!on_gpu()) {
        REQUIRE(cut == std::vector<float>(256, 16384.0f));
        REQUIRE(multiply(row, column, 16, 16, 64, false) == std::vector<float>(256, 16384.0f + 63.0f));
    }
    // The error relative to the root of the mean square of the result: docs/fp8.md has the figures. Each instruction
    // of 32 terms cuts off at most 33 x 2^-13 of the largest.
    for (const int K : {768, 3072}) {
        const int N = 64;
        const auto a = random_values<e4m3>(int64_t{N} * K, 1, 100.0);
        const auto b = random_values<e4m3>(int64_t{N} * K, 2, 100.0);
        const std::vector<double> exact = matmul_oracle(widen<double>(a), widen<double>(b), N, N, K, false, true);
        const std::vector<float> fast = multiply(a, b, N, N, K, true);
        double errors = 0;
        double squares = 0;
        for (size_t i = 0; i < exact.size(); ++i) {
            errors += (fast[i] - exact[i]) * (fast[i] - exact[i]);
            squares += exact[i] * exact[i];
        }
        const double relative = std::sqrt(errors / squares);
        UNSCOPED_INFO("K = " << K << ": " << relative);
        CAPTURE(K, relative);
        REQUIRE(relative < 0.01);  // a bf16 result rounds to 2^-9 = 0.002
        if (!on_gpu()) REQUIRE(relative > 1e-5);
    }
    Gemm bad{.M = 16, .N = 16, .K = 16, .fast_accumulation = true};
    Guarded<float> X(256, stream);
    bad.A = bad.B = bad.C = mat(X.data(), 16);
    REQUIRE_THROWS_WITH(linalg.gemm(bad), "gemm: fast accumulation of float; it exists for FP8");
}

TEST_CASE("runtime/linalg/linalg: products of FP8 that cuBLASLt does not document are refused in a sentence") {
    Stream stream;
    Linalg linalg(stream);
    Buffer<float> scale(1);
    Buffer<float> C(64 * 64);
    Buffer<float> bias(64);
    Buffer<bf16> narrow(64 * 64);
    Buffer<f16> half(64 * 64);
    Buffer<e4m3> A(64 * 64);
    Buffer<e4m3> B(64 * 64);
    Buffer<e5m2> gradient(64 * 64);
    const Gemm good = [&] {
        Gemm g{.M = 64, .N = 64, .K = 64, .trans_b = true, .A = mat(A.data(), 64), .B = mat(B.data(), 64)};
        g.C = mat(C.data(), 64);
        g.A.scale = g.B.scale = scale.data();
        return g;
    }();
    teon::check_gemm(good);
    const auto says = [&](const char* what, auto change) {
        Gemm g = good;
        change(g);
        REQUIRE_THAT(error_of([&] { linalg.gemm(g); }), ContainsSubstring(what));
    };
    const auto fp8 = [&](const auto& buffer) {
        Mat m = mat(buffer.data(), 64);
        m.scale = scale.data();
        return m;
    };
    says("one of them e4m3", [&](Gemm& g) { g.A = g.B = fp8(gradient); });
    says("both must be FP8", [&](Gemm& g) { g.B = fp8(narrow); });
    says("both must be FP8", [&](Gemm& g) { g.A = fp8(narrow); });
    says("without scale", [](Gemm& g) { g.A.scale = nullptr; });
    says("A must not be transposed", [](Gemm& g) { g.trans_a = true; });
    says("B must be", [](Gemm& g) { g.trans_b = false; });
    says("C is f16", [&](Gemm& g) { g.C = mat(half.data(), 64); });
    says("K must be a multiple of 16", [](Gemm& g) { g.K = 24; });
    says("rows of C of 16 bytes", [](Gemm& g) { g.N = 62; });
    says("do not begin at multiples of 16", [](Gemm& g) { g.A.ld = 72; });
    says("do not begin at multiples of 16", [&](Gemm& g) {
        g.B.data = B.data() + 8;
        g.N = 32;
    });
    says("a batch", [](Gemm& g) { g.batch_inner = 2; });
    says("epilogue beside bias", [&](Gemm& g) {
        g.epilogue = Epilogue::bias;
        g.bias = mat(bias.data(), 64);
    });
    says("epilogue beside bias", [&](Gemm& g) {
        g.epilogue = Epilogue::bias_grad;
        g.bias = mat(bias.data(), 64);
    });
}
