#include "runtime/linalg.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/integer.h"
#include "runtime/simt.h"
#include "test/oracle/activation.h"
#include "test/oracle/gemm.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/fp8_sum.h"
#include "test/support/gemm_layout.h"
#include "test/support/needs_fp8.h"
#include "test/support/on_gpu.h"
#include "test/support/os_threads.h"
#include "test/support/proposals.h"

using namespace teon;
using namespace teon::test;

namespace {

struct Case {
    int M, N, K;
    bool trans_a = false, trans_b = false;
    float alpha = 1.0f, beta = 0.0f;
    int padding = 0, inner = 1, outer = 1;
    Epilogue epilogue = Epilogue::none;
    bool addend = false, search = false, unbiased = false;
    bool has_aux() const { return epilogue == Epilogue::gelu || epilogue == Epilogue::dgelu; }
};

// Returns the oracle's GELU of the sums, or the sums times GELU's derivative. The tolerance includes one more rounding
// of each sum to T, because a library may apply GELU to the stored sums.
template <typename T>
std::vector<Tracked> gelu_oracle(Epilogue epilogue, std::vector<Tracked> sums, const std::vector<Tracked>& aux) {
    for (Tracked& x : sums) x.magnitude += kUnitRoundoff<T> / kUnitRoundoff<float> / kSumRoundings * std::abs(x.value);
    std::vector<Tracked> results = epilogue == Epilogue::gelu ? gelu_forward(sums) : gelu_backward(aux, sums);
    if (!on_gpu()) return results;
    // On a GPU, cuBLASLt takes tanh from the hardware, with an error of 2^-11 (PTX ISA, tanh.approx).
    for (size_t i = 0; i < results.size(); ++i) {
        const double factor = epilogue == Epilogue::gelu ? 0.5 * std::abs(sums[i].value)
                                                         : (0.5 + 2 * std::abs(aux[i].value)) * std::abs(sums[i].value);
        results[i].magnitude += 0x1p-11 * factor / kUnitRoundoff<float> / kSumRoundings;
    }
    return results;
}

// The sum of a product, beta times the addend and a bias, which cuBLASLt on a GPU may add in any order and may round to
// T in between: an H200 did so in products with bf16 outputs.
template <typename T>
Tracked sum_of(Tracked product, Tracked addend, Tracked bias) {
    Tracked sum = product + addend + bias;
    if (on_gpu() && (addend.value != 0 || bias.value != 0))
        sum.magnitude +=
            kUnitRoundoff<T> / kUnitRoundoff<float> / kSumRoundings *
            (std::abs(product.value) + std::abs((product + addend).value) + std::abs((product + bias).value));
    return sum;
}

// beta bias_grad + the sums of A's rows.
std::vector<Tracked> expected_bias_grad(const Case& c, const std::vector<Tracked>& a,
                                        const std::vector<float>& bias_grad) {
    std::vector<Tracked> sums(c.M);
    for (int j = 0; j < c.M; ++j) {
        if (c.beta != 0.0f) sums[j] = Tracked(c.beta) * Tracked(static_cast<double>(bias_grad[j]));
        for (int64_t k = 0; k < c.K; ++k) sums[j] += a[c.trans_a ? k * c.M + j : j * c.K + k];
    }
    return sums;
}

template <typename T, typename TC>
void check_gemm(const Case& c) {
    CAPTURE(c.M, c.N, c.K, c.trans_a, c.trans_b, c.alpha, c.beta, c.padding, c.inner, c.outer);
    CAPTURE(static_cast<int>(c.epilogue), c.addend, name_of(dtype_of<T>), name_of(dtype_of<TC>));
    Stream stream;
    Linalg linalg(stream);
    if (c.search) linalg.search_algorithms({}, nullptr);
    int batch = c.inner * c.outer;
    Layout la(c.trans_a ? c.K : c.M, c.trans_a ? c.M : c.K, c.padding, c.inner, c.outer);
    Layout lb(c.trans_b ? c.N : c.K, c.trans_b ? c.K : c.N, c.padding, c.inner, c.outer);
    Layout lc(c.M, c.N, c.padding, c.inner, c.outer);
    Layout lx(c.M, c.N, round_up(c.N, 8) - c.N + 8 * c.padding, 1, 1);

    auto a = random_values<T>(la.size(), 1);
    auto b = random_values<T>(lb.size(), 2);
    auto before = random_values<TC>(lc.size(), 3);
    auto addend = random_values<TC>(lc.size(), 4);
    auto bias = random_values<TC>(c.N, 5);
    auto bias_grad = random_values<float>(c.M, 6);
    auto aux = random_values<TC>(lx.size(), 7);
    if (c.epilogue == Epilogue::gelu) std::fill(aux.begin(), aux.end(), TC(NAN));
    if (c.beta == 0.0f || c.addend) std::fill(before.begin(), before.end(), TC(NAN));
    if (c.beta == 0.0f) {
        std::fill(addend.begin(), addend.end(), TC(NAN));
        std::fill(bias_grad.begin(), bias_grad.end(), NAN);
    }

    Guarded<T> A(a, stream);
    Guarded<T> B(b, stream);
    Guarded<TC> C(before, stream);
    Guarded<TC> Addend(addend, stream);
    Guarded<TC> Bias(bias, stream);
    Guarded<TC> Aux(aux, stream);
    Guarded<float> BiasGrad(bias_grad, stream);
    Gemm g;
    g.M = c.M;
    g.N = c.N;
    g.K = c.K;
    g.trans_a = c.trans_a;
    g.trans_b = c.trans_b;
    g.alpha = c.alpha;
    g.beta = c.beta;
    g.A = la.mat(A.data());
    g.B = lb.mat(B.data());
    g.C = lc.mat(C.data());
    g.batch_inner = c.inner;
    g.batch_outer = c.outer;
    g.epilogue = c.epilogue;
    g.bias = c.epilogue == Epilogue::bias_grad ? mat(BiasGrad.data(), c.M) : mat(Bias.data(), c.N);
    if (c.unbiased) g.bias = {};
    if (c.addend) g.addend = lc.mat(Addend.data());
    if (c.has_aux()) g.aux = lx.mat(Aux.data());
    linalg.gemm(g);

    auto after = C.get();
    REQUIRE(same_bits(A.get(), a));
    REQUIRE(same_bits(B.get(), b));
    REQUIRE(same_bits(lc.blank(after), lc.blank(before)));
    REQUIRE(same_bits(lx.blank(Aux.get()), lx.blank(aux)));
    if (c.epilogue != Epilogue::gelu) REQUIRE(same_bits(Aux.get(), aux));
    const bool biased = (c.epilogue == Epilogue::bias || c.epilogue == Epilogue::gelu) && !c.unbiased;
    for (int m = 0; m < batch; ++m) {
        auto wide_a = widen<Tracked>(la.take(a, m));
        auto expected = matmul_oracle(wide_a, widen<Tracked>(lb.take(b, m)), c.M, c.N, c.K, c.trans_a, c.trans_b);
        auto added = widen<Tracked>(lc.take(c.addend ? addend : before, m));
        for (int64_t i = 0; i < std::ssize(expected); ++i) {
            expected[i] *= static_cast<double>(c.alpha);
            expected[i] = sum_of<TC>(expected[i], c.beta == 0.0f ? Tracked() : Tracked(c.beta) * added[i],
                                     biased ? static_cast<double>(bias[i % c.N]) : 0.0);
        }
        if (c.epilogue == Epilogue::gelu) REQUIRE(compare(lx.take(Aux.get(), 0), expected, kSumRoundings));
        if (c.has_aux()) expected = gelu_oracle<TC>(c.epilogue, expected, widen<Tracked>(lx.take(aux, 0)));
        REQUIRE(compare(lc.take(after, m), expected, kSumRoundings));
        if (c.epilogue == Epilogue::bias_grad) {
            REQUIRE(compare(BiasGrad.get(), expected_bias_grad(c, wide_a, bias_grad), kSumRoundings));
        }
    }
}

// Checks every combination of storage types: two inputs of one type, and an output of the same type or float.
void check_dtypes(const Case& c) {
    check_gemm<float, float>(c);
    check_gemm<bf16, bf16>(c);
    check_gemm<bf16, float>(c);
    check_gemm<f16, f16>(c);
    check_gemm<f16, float>(c);
}

}  // namespace

TEST_CASE("runtime/linalg: gemm agrees with the oracle for every transposition, odd size and storage type") {
    for (auto [M, N, K] : {std::array{1, 1, 1}, {1, 33, 31}, {33, 1, 97}, {31, 97, 1}, {97, 31, 33}, {33, 97, 31}})
        for (bool trans_a : {false, true})
            for (bool trans_b : {false, true})
                for (int padding : {0, 7})
                    check_dtypes({.M = M, .N = N, .K = K, .trans_a = trans_a, .trans_b = trans_b, .padding = padding});
}

TEST_CASE("runtime/linalg: gemm agrees with the oracle across tiles and slices of K") {
    for (bool trans : {false, true}) {
        check_dtypes({.M = 300, .N = 270, .K = 130, .trans_a = trans, .trans_b = !trans, .padding = 3});
        check_dtypes({.M = 65, .N = 140, .K = 1200, .trans_a = trans, .trans_b = trans, .beta = 1.0f});
        check_gemm<float, float>({.M = 1030, .N = 600, .K = 16, .trans_a = trans, .trans_b = !trans, .padding = 3});
    }
}

TEST_CASE("runtime/linalg: gemm scales the product by alpha and adds beta C, which beta = 0 never reads") {
    for (float alpha : {1.0f, -0.75f})
        for (float beta : {0.0f, 1.0f, -0.5f}) {
            check_dtypes({.M = 33, .N = 31, .K = 97, .alpha = alpha, .beta = beta, .padding = 5});
            check_dtypes({.M = 33, .N = 31, .K = 97, .alpha = alpha, .beta = beta, .padding = 5, .addend = true});
        }
}

TEST_CASE("runtime/linalg: gemm covers batches in two levels") {
    for (auto [inner, outer] : {std::pair{5, 1}, {1, 3}, {3, 2}, {2, 5}}) {
        Case c{.M = 33, .N = 17, .K = 31, .trans_b = true, .beta = 1.0f, .padding = 3, .inner = inner, .outer = outer};
        check_dtypes(c);
        c.padding = 0;
        c.beta = 0.0f;  // the two batch levels merge into one
        check_dtypes(c);
        c.addend = true;
        c.beta = 2.0f;
        check_dtypes(c);
    }
}

namespace {

// Checks C = 0.5 scales A B^T + beta addend + bias with FP8 operands.
template <typename FA, typename FB, typename TC>
void check_fp8(int M, int N, int K, float beta, bool biased, bool search) {
    CAPTURE(name_of(dtype_of<FA>), name_of(dtype_of<FB>), name_of(dtype_of<TC>), M, N, K, beta, biased, search);
    Stream stream;
    Linalg linalg(stream);
    if (search) linalg.search_algorithms({}, nullptr);
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

TEST_CASE("runtime/linalg: products of FP8 agree with the oracle in all documented combinations") {
    NEEDS_FP8();
    for (const auto& [M, N, K] : {std::array{1, 16, 16}, {33, 48, 32}, {300, 272, 128}, {64, 16, 1200}})
        for (const float beta : {0.0f, 1.0f})
            for (const bool search : {false, true}) {
                check_fp8<e4m3, e4m3, float>(M, N, K, beta, false, search);
                check_fp8<e5m2, e4m3, float>(M, N, K, beta, false, search);
                check_fp8<e4m3, e5m2, float>(M, N, K, beta, false, search);
                check_fp8<e4m3, e4m3, bf16>(M, N, K, beta, true, search);
                check_fp8<e5m2, e4m3, bf16>(M, N, K, beta, true, search);
            }
}

// One small product of each kind, so that a new machine's first minute names the kinds that it has (gpu_first.py).
TEMPLATE_TEST_CASE("runtime/linalg: one product", "", float, bf16, f16) {
    check_gemm<TestType, TestType>({.M = 64, .N = 128, .K = 64, .trans_b = true});
}

TEMPLATE_TEST_CASE("runtime/linalg: one product of e4m3 and", "", e4m3, e5m2) {
    NEEDS_FP8();
    check_fp8<e4m3, TestType, float>(64, 128, 64, 0.0f, false, false);
}

TEST_CASE("runtime/linalg: fast accumulation keeps 14 bits of the sums of FP8 products on a CPU, and works on a GPU") {
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

TEST_CASE("runtime/linalg: products of FP8 that cuBLASLt does not document are refused in a sentence") {
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
        try {
            linalg.gemm(g);
        } catch (const Error& e) {
            CAPTURE(e.what());
            REQUIRE(std::string(e.what()).find(what) != std::string::npos);
            return;
        }
        FAIL("accepted: " << what);
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
        g.epilogue = Epilogue::gelu;
        g.aux = g.C;
    });
}

TEST_CASE("runtime/linalg: the algorithm that a search takes computes the same, whatever is added") {
    const Proposals several("3");
    check_dtypes({.M = 72, .N = 136, .K = 264, .trans_b = true, .search = true});
    check_dtypes({.M = 72, .N = 136, .K = 264, .beta = 1.0f, .inner = 3, .search = true});
    check_dtypes({.M = 72, .N = 136, .K = 264, .trans_a = true, .beta = 0.5f, .padding = 3, .search = true});
    check_dtypes({.M = 72, .N = 136, .K = 264, .beta = 2.0f, .addend = true, .search = true});
}

TEST_CASE("runtime/linalg: a batch stride of 0 uses one matrix for all") {
    Stream stream;
    Linalg linalg(stream);
    constexpr int M = 31;
    constexpr int N = 33;
    constexpr int K = 17;
    constexpr int batch = 4;
    auto a = random_values<float>(M * K, 1);
    auto b = random_values<float>(batch * K * N, 2);
    Guarded<float> A(a, stream);
    Guarded<float> B(b, stream);
    Guarded<float> C(batch * M * N, stream);
    Gemm g;
    g.M = M;
    g.N = N;
    g.K = K;
    g.batch_inner = batch;
    g.A = mat(A.data(), K);
    g.B = mat(B.data(), N, K * N);
    g.C = mat(C.data(), N, M * N);
    linalg.gemm(g);
    auto c = C.get();
    for (int i = 0; i < batch; ++i) {
        std::vector<float> bi(b.begin() + i * K * N, b.begin() + (i + 1) * K * N);
        std::vector<float> ci(c.begin() + i * M * N, c.begin() + (i + 1) * M * N);
        REQUIRE(compare(ci, matmul_oracle(widen<Tracked>(a), widen<Tracked>(bi), M, N, K), kSumRoundings));
    }
}

TEST_CASE("runtime/linalg: the bias epilogue adds a row to every row") {
    for (auto [M, N] : {std::pair{1, 40}, {31, 8}, {97, 136}, {300, 264}})
        for (float beta : {0.0f, 1.0f}) {
            Case c{.M = M, .N = N, .K = 32, .trans_b = true, .beta = beta, .epilogue = Epilogue::bias};
            check_gemm<float, float>(c);
            check_gemm<bf16, bf16>(c);
        }
    Case odd{.M = 33, .N = 31, .K = 17, .trans_b = true, .padding = 1, .epilogue = Epilogue::bias};
    check_gemm<float, float>(odd);
    check_gemm<bf16, bf16>(odd);
}

TEST_CASE(
    "runtime/linalg: GELU and its derivative as epilogues agree with the oracle, and what goes into GELU is kept") {
    for (auto [M, N, K] : {std::array{1, 40, 32}, {31, 8, 24}, {33, 31, 17}, {97, 136, 264}, {70, 136, 600}}) {
        const float alpha = 1.5f / std::sqrt(static_cast<float>(K));  // keeps sums where GELU is curved
        for (Epilogue epilogue : {Epilogue::gelu, Epilogue::dgelu}) {
            Case c{.M = M, .N = N, .K = K, .alpha = alpha, .epilogue = epilogue};
            check_dtypes(c);
            c.trans_b = true;
            c.padding = 1;
            check_dtypes(c);
            c.trans_a = true;
            c.beta = -0.5f;
            c.unbiased = true;
            check_dtypes(c);
            c.padding = 0;
            c.addend = true;
            check_dtypes(c);
        }
    }
    const Proposals several("3");
    for (Epilogue epilogue : {Epilogue::gelu, Epilogue::dgelu})
        check_dtypes({.M = 72, .N = 136, .K = 64, .alpha = 0.2f, .epilogue = epilogue, .search = true});
}

TEST_CASE("runtime/linalg: the bias gradient epilogue accumulates the column sums of dY") {
    for (auto [M, K] : {std::pair{8, 1}, {40, 31}, {136, 97}, {200, 1025}})
        for (bool trans_a : {true, false})
            for (float beta : {0.0f, 1.0f, -0.5f}) {
                Case c{.M = M, .N = 24, .K = K, .trans_a = trans_a, .beta = beta, .epilogue = Epilogue::bias_grad};
                check_gemm<float, float>(c);
                check_gemm<bf16, float>(c);
                check_gemm<bf16, bf16>(c);
            }
}

TEST_CASE("runtime/linalg: gemm gives the same bits for any number of threads") {
    Stream stream;
    auto run = [&]<typename T, typename TC>(Case c, bool symmetric, T, TC) {
        Linalg linalg(stream);
        auto x = random_values<T>(int64_t{c.M} * c.K, 1);
        auto w = random_values<T>(int64_t{c.N} * c.K, 2);
        auto y = random_values<TC>(int64_t{c.M} * c.N, 3);
        Guarded<T> X(x, stream);
        Guarded<T> W(w, stream);
        Guarded<TC> C(y, stream);
        Guarded<TC> Bias(random_values<TC>(c.N, 4), stream);
        Guarded<float> BiasGrad(random_values<float>(c.M, 5), stream);
        Guarded<TC> Aux(random_values<TC>(int64_t{c.M} * round_up(c.N, 8), 6), stream);
        Gemm g;
        g.M = c.M;
        g.N = c.N;
        g.K = c.K;
        g.trans_a = c.trans_a;
        g.trans_b = c.trans_b;
        g.beta = c.beta;
        g.A = mat(X.data(), c.trans_a ? c.M : c.K);
        g.B = symmetric ? g.A : mat(W.data(), c.trans_b ? c.K : c.N);
        g.C = mat(C.data(), c.N);
        g.symmetric = symmetric;
        g.epilogue = c.epilogue;
        g.bias = c.epilogue == Epilogue::bias_grad ? mat(BiasGrad.data(), c.M) : mat(Bias.data(), c.N);
        g.aux = mat(Aux.data(), round_up(c.N, 8));
        linalg.gemm(g);
        auto all = widen<double>(C.get());
        for (TC v : Aux.get()) all.push_back(static_cast<float>(v));
        if (c.epilogue == Epilogue::bias_grad)
            for (float v : BiasGrad.get()) all.push_back(v);
        return all;
    };
    for (Case c : {Case{.M = 7, .N = 9, .K = 65}, Case{.M = 300, .N = 200, .K = 700, .beta = 1.0f},
                   Case{.M = 301, .N = 203, .K = 64, .epilogue = Epilogue::bias},
                   Case{.M = 301, .N = 203, .K = 64, .epilogue = Epilogue::gelu},
                   Case{.M = 301, .N = 203, .K = 64, .epilogue = Epilogue::dgelu},
                   Case{.M = 129, .N = 140, .K = 500, .trans_a = true, .epilogue = Epilogue::bias_grad}}) {
        CAPTURE(c.M, c.N, c.K);
        REQUIRE(same_with_any_threads([&] { return bytes_of(run(c, false, float{}, float{})); }, {1, 2, 3}));
        REQUIRE(same_with_any_threads([&] { return bytes_of(run(c, false, bf16{}, bf16{})); }, {1, 2, 3}));
        REQUIRE(same_with_any_threads([&] { return bytes_of(run(c, false, bf16{}, float{})); }, {1, 2, 3}));
    }
    Case square{.M = 300, .N = 300, .K = 100, .trans_b = true};
    REQUIRE(same_with_any_threads([&] { return bytes_of(run(square, true, float{}, float{})); }, {1, 2, 3}));
    REQUIRE(same_with_any_threads([&] { return bytes_of(run(square, true, bf16{}, bf16{})); }, {1, 2, 3}));
}

TEST_CASE("runtime/linalg: gemm allocates nothing once it has seen a shape") {
    Stream stream;
    Linalg linalg(stream);
    Guarded<bf16> A(random_values<bf16>(97 * 600, 1), stream);
    Guarded<bf16> C(97 * 97, stream);
    Gemm g;
    g.M = g.N = 97;
    g.K = 600;
    g.trans_b = true;
    g.A = g.B = mat(A.data(), 600);
    g.C = mat(C.data(), 97);
    linalg.gemm(g);
    size_t device = device_bytes_in_use();
    auto first = C.get();
    for (int i = 0; i < 3; ++i) linalg.gemm(g);
    REQUIRE(device_bytes_in_use() == device);
    REQUIRE(same_bits(C.get(), first));
    REQUIRE(&linalg.stream() == &stream);
}

TEST_CASE("runtime/linalg: products that the library refuses are counted by kind; it refuses no aligned one") {
    Stream stream;
    const int size = 64;
    Guarded<bf16> memory(random_values<bf16>(3 * size * size, 1), stream);
    auto refused = [&](int N, int ld, int offset, int calls) {
        Linalg linalg(stream);
        Gemm g;
        g.M = g.K = size;
        g.N = N;
        g.A = mat(memory.data(), size);
        g.B = mat(memory.data() + size * size + offset, ld);
        g.C = mat(memory.data() + 2 * size * size, ld);
        for (int i = 0; i < calls; ++i) linalg.gemm(g);
        stream.synchronize();
        return linalg.refused_kinds();
    };
    for (int N : {8, 24, 64}) REQUIRE(refused(N, 64, 0, 2) == 0);
    if (std::string(backend_name()) != "cpu") return;  // a GPU's library may refuse other shapes
    const char* before = getenv("CUBLASLT_REFUSE");
    const std::string restored = before ? before : "";
    for (const char* when : {"heuristic", "call"}) {
        setenv("CUBLASLT_REFUSE", when, 1);
        REQUIRE(refused(8, 64, 0, 2) == 0);
        REQUIRE(refused(8, 63, 0, 3) == 1);
        REQUIRE(refused(8, 64, 1, 3) == 1);
    }
    before ? setenv("CUBLASLT_REFUSE", restored.c_str(), 1) : unsetenv("CUBLASLT_REFUSE");
}

TEST_CASE("runtime/linalg: a bias gradient of no rows or columns is refused") {
    Stream stream;
    Linalg linalg(stream);
    Buffer<float> db(8);
    Buffer<float> dy(64);
    const auto message_for = [&](int rows, int columns) {
        return error_of([&] { linalg.bias_gradient(db.data(), mat(dy.data(), 8), rows, columns, 0.0f); });
    };
    REQUIRE(contains(message_for(0, 8), "bias gradient: empty dy of 0 x 8"));
    REQUIRE(contains(message_for(8, 0), "bias gradient: empty dy of 8 x 0"));
}

TEST_CASE("runtime/linalg: gemm refuses what it cannot do and names it") {
    Stream stream;
    Linalg linalg(stream);
    Buffer<float> memory(64 * 64);
    Buffer<bf16> half(64 * 64);
    Gemm good;
    good.M = good.N = good.K = 8;
    good.A = good.B = mat(memory.data(), 8);
    good.C = mat(memory.data() + 1024, 8);
    auto message = [&](auto change) {
        Gemm g = good;
        change(g);
        return error_of([&] { linalg.gemm(g); });
    };
    REQUIRE(contains(message([](Gemm& g) { g.K = 0; }), "8 x 8 x 0"));
    REQUIRE(contains(message([](Gemm& g) { g.batch_outer = 0; }), "batch"));
    REQUIRE(contains(message([](Gemm& g) { g.A.data = nullptr; }), "A is null"));
    REQUIRE(contains(message([](Gemm& g) { g.B.ld = 7; }), "B is 8 x 8 but its row stride (ld) is 7"));
    REQUIRE(contains(message([](Gemm& g) {
                         g.trans_a = true;
                         g.M = 9;
                     }),
                     "A is 8 x 9"));
    REQUIRE(contains(message([&](Gemm& g) { g.B = mat(half.data(), 8); }), "B is bf16, expected float"));
    REQUIRE(contains(message([&](Gemm& g) { g.C = mat(half.data(), 8); }), "C is bf16"));
    REQUIRE(contains(message([](Gemm& g) {
                         g.symmetric = true;
                         g.N = 7;
                     }),
                     "symmetric"));
    REQUIRE(contains(message([](Gemm& g) { g.epilogue = Epilogue::bias; }), "bias is null"));
    REQUIRE(contains(message([&](Gemm& g) {
                         g.epilogue = Epilogue::bias;
                         g.bias = mat(half.data(), 8);
                     }),
                     "bias is bf16"));
    REQUIRE(contains(message([&](Gemm& g) {
                         g.epilogue = Epilogue::bias;
                         g.bias = g.A;
                         g.batch_inner = 2;
                     }),
                     "batch"));
    REQUIRE(contains(message([](Gemm& g) { g.epilogue = Epilogue::gelu; }), "aux is null"));
    REQUIRE(contains(message([&](Gemm& g) {
                         g.epilogue = Epilogue::gelu;
                         g.aux = mat(half.data(), 8);
                     }),
                     "aux is bf16, expected float"));
    REQUIRE(contains(message([&](Gemm& g) {
                         g.epilogue = Epilogue::dgelu;
                         g.aux = mat(memory.data() + 2048, 12);
                     }),
                     "aux has a row stride (ld) of 12, expected a multiple of 8"));
    REQUIRE(contains(message([&](Gemm& g) { g.addend = mat(half.data(), 8); }), "addend is bf16"));
    REQUIRE(contains(message([&](Gemm& g) { g.C.data = reinterpret_cast<char*>(g.C.data) + 2; }), "aligned"));
}
