#include "runtime/linalg/linalg.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "runtime/simt.h"
#include "test/oracle/gemm.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/gemm_layout.h"
#include "test/support/gpu_sums.h"
#include "test/support/on_gpu.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

namespace {

struct Case {
    int M, N, K;
    bool trans_a = false, trans_b = false;
    float alpha = 1.0f, beta = 0.0f;
    int padding = 0, inner = 1, outer = 1;
    Epilogue epilogue = Epilogue::none;
    bool addend = false;
};

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

// The tensors of a product on the host and on the device. What must not be read is NaN.
template <typename T, typename TC>
struct Product {
    const Case& c;
    Layout la{c.trans_a ? c.K : c.M, c.trans_a ? c.M : c.K, c.padding, c.inner, c.outer};
    Layout lb{c.trans_b ? c.N : c.K, c.trans_b ? c.K : c.N, c.padding, c.inner, c.outer};
    Layout lc{c.M, c.N, c.padding, c.inner, c.outer};
    bool adds = c.beta != 0.0f;
    std::vector<T> a = random_values<T>(la.size(), 1), b = random_values<T>(lb.size(), 2);
    std::vector<TC> before = values<TC>(lc.size(), 3, adds && !c.addend), addend = values<TC>(lc.size(), 4, adds),
                    bias = random_values<TC>(c.N, 5);
    std::vector<float> bias_grad = values<float>(c.M, 6, adds);
    Guarded<T> A, B;
    Guarded<TC> C, Addend, Bias;
    Guarded<float> BiasGrad;

    Product(const Case& c, const Stream& stream)
        : c(c),
          A(a, stream),
          B(b, stream),
          C(before, stream),
          Addend(addend, stream),
          Bias(bias, stream),
          BiasGrad(bias_grad, stream) {}
    template <typename E>
    static std::vector<E> values(int64_t n, uint64_t seed, bool is_read) {
        return is_read ? random_values<E>(n, seed) : std::vector<E>(static_cast<size_t>(n), E(NAN));
    }
    Gemm gemm() const {
        Gemm g{.M = c.M,
               .N = c.N,
               .K = c.K,
               .trans_a = c.trans_a,
               .trans_b = c.trans_b,
               .A = la.mat(A.data()),
               .B = lb.mat(B.data()),
               .C = lc.mat(C.data()),
               .alpha = c.alpha,
               .beta = c.beta,
               .batch_inner = c.inner,
               .batch_outer = c.outer,
               .epilogue = c.epilogue};
        g.bias = c.epilogue == Epilogue::bias_grad ? mat(BiasGrad.data(), c.M) : mat(Bias.data(), c.N);
        if (c.addend) g.addend = lc.mat(Addend.data());
        return g;
    }
};

template <typename T, typename TC>
void check_gemm(const Case& c) {
    CAPTURE(c.M, c.N, c.K, c.trans_a, c.trans_b, c.alpha, c.beta, c.padding, c.inner, c.outer);
    CAPTURE(static_cast<int>(c.epilogue), c.addend, name_of(dtype_of<T>), name_of(dtype_of<TC>));
    Stream stream;
    Linalg linalg(stream);
    const Product<T, TC> p(c, stream);
    linalg.gemm(p.gemm());

    auto after = p.C.get();
    REQUIRE(same_bits(p.A.get(), p.a));
    REQUIRE(same_bits(p.B.get(), p.b));
    REQUIRE(same_bits(p.lc.blank(after), p.lc.blank(p.before)));
    const bool biased = c.epilogue == Epilogue::bias;
    for (int m = 0; m < c.inner * c.outer; ++m) {
        auto wide_a = widen<Tracked>(p.la.take(p.a, m));
        auto expected = matmul_oracle(wide_a, widen<Tracked>(p.lb.take(p.b, m)), c.M, c.N, c.K, c.trans_a, c.trans_b);
        auto added = widen<Tracked>(p.lc.take(c.addend ? p.addend : p.before, m));
        for (int64_t i = 0; i < std::ssize(expected); ++i) {
            expected[i] *= static_cast<double>(c.alpha);
            expected[i] = sum_of<TC>(expected[i], p.adds ? Tracked(c.beta) * added[i] : Tracked(),
                                     biased ? static_cast<double>(p.bias[i % c.N]) : 0.0);
        }
        REQUIRE(compare(p.lc.take(after, m), expected, kSumRoundings));
        if (c.epilogue == Epilogue::bias_grad)
            REQUIRE(compare(p.BiasGrad.get(), expected_bias_grad(c, wide_a, p.bias_grad), kSumRoundings));
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

TEST_CASE("runtime/linalg/linalg: gemm agrees with the oracle for every transposition, odd size and storage type") {
    for (auto [M, N, K] : {std::array{1, 1, 1}, {1, 33, 31}, {33, 1, 97}, {31, 97, 1}, {97, 31, 33}, {33, 97, 31}})
        for (bool trans_a : {false, true})
            for (bool trans_b : {false, true})
                for (int padding : {0, 7})
                    check_dtypes({.M = M, .N = N, .K = K, .trans_a = trans_a, .trans_b = trans_b, .padding = padding});
}

TEST_CASE("runtime/linalg/linalg: gemm agrees with the oracle across tiles and slices of K") {
    for (bool trans : {false, true}) {
        check_dtypes({.M = 300, .N = 270, .K = 130, .trans_a = trans, .trans_b = !trans, .padding = 3});
        check_dtypes({.M = 65, .N = 140, .K = 1200, .trans_a = trans, .trans_b = trans, .beta = 1.0f});
        check_gemm<float, float>({.M = 1030, .N = 600, .K = 16, .trans_a = trans, .trans_b = !trans, .padding = 3});
    }
}

TEST_CASE("runtime/linalg/linalg: gemm scales the product by alpha and adds beta C, which beta = 0 never reads") {
    for (float alpha : {1.0f, -0.75f})
        for (float beta : {0.0f, 1.0f, -0.5f}) {
            check_dtypes({.M = 33, .N = 31, .K = 97, .alpha = alpha, .beta = beta, .padding = 5});
            check_dtypes({.M = 33, .N = 31, .K = 97, .alpha = alpha, .beta = beta, .padding = 5, .addend = true});
        }
}

TEST_CASE("runtime/linalg/linalg: gemm covers batches in two levels") {
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

// One small product of each kind, so that a new machine's first minute names the kinds that it has (gpu_first.py).
TEMPLATE_TEST_CASE("runtime/linalg/linalg: one product", "", float, bf16, f16) {
    check_gemm<TestType, TestType>({.M = 64, .N = 128, .K = 64, .trans_b = true});
}

TEST_CASE("runtime/linalg/linalg: a batch stride of 0 uses one matrix for all") {
    Stream stream;
    Linalg linalg(stream);
    constexpr int M = 31;
    constexpr int N = 33;
    constexpr int K = 17;
    constexpr int kBatch = 4;
    auto a = random_values<float>(M * K, 1);
    auto b = random_values<float>(kBatch * K * N, 2);
    Guarded<float> A(a, stream);
    Guarded<float> B(b, stream);
    Guarded<float> C(kBatch * M * N, stream);
    linalg.gemm({.M = M,
                 .N = N,
                 .K = K,
                 .A = mat(A.data(), K),
                 .B = mat(B.data(), N, K * N),
                 .C = mat(C.data(), N, M * N),
                 .batch_inner = kBatch});
    const Layout all_b(K, N, 0, kBatch, 1);
    const Layout all_c(M, N, 0, kBatch, 1);
    for (int i = 0; i < kBatch; ++i)
        REQUIRE(compare(all_c.take(C.get(), i),
                        matmul_oracle(widen<Tracked>(a), widen<Tracked>(all_b.take(b, i)), M, N, K), kSumRoundings));
}

TEST_CASE("runtime/linalg/linalg: the bias epilogue adds a row to every row") {
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

TEST_CASE("runtime/linalg/linalg: the bias gradient epilogue accumulates the column sums of dY") {
    for (auto [M, K] : {std::pair{8, 1}, {40, 31}, {136, 97}, {200, 1025}})
        for (bool trans_a : {true, false})
            for (float beta : {0.0f, 1.0f, -0.5f}) {
                Case c{.M = M, .N = 24, .K = K, .trans_a = trans_a, .beta = beta, .epilogue = Epilogue::bias_grad};
                check_gemm<float, float>(c);
                check_gemm<bf16, float>(c);
                check_gemm<bf16, bf16>(c);
            }
}

TEST_CASE("runtime/linalg/linalg: gemm gives the same bits for any number of threads") {
    Stream stream;
    const auto check = [&]<typename T, typename TC>(const Case& c, bool symmetric, T, TC) {
        CAPTURE(c.M, c.N, c.K, symmetric);
        const auto run = [&] {
            Linalg linalg(stream);
            const Product<T, TC> p(c, stream);
            Gemm g = p.gemm();
            g.symmetric = symmetric;
            if (symmetric) g.B = g.A;
            linalg.gemm(g);
            return bytes_of(p.C.get(), p.BiasGrad.get());
        };
        REQUIRE(same_with_any_threads(run, {1, 2, 3}));
    };
    for (Case c : {Case{.M = 7, .N = 9, .K = 65}, Case{.M = 300, .N = 200, .K = 700, .beta = 1.0f},
                   Case{.M = 301, .N = 203, .K = 64, .epilogue = Epilogue::bias},
                   Case{.M = 129, .N = 140, .K = 500, .trans_a = true, .epilogue = Epilogue::bias_grad}}) {
        check(c, false, float{}, float{});
        check(c, false, bf16{}, bf16{});
        check(c, false, bf16{}, float{});
    }
    const Case square{.M = 300, .N = 300, .K = 100, .trans_b = true};
    check(square, true, float{}, float{});
    check(square, true, bf16{}, bf16{});
}

TEST_CASE("runtime/linalg/linalg: gemm allocates nothing once it has seen a shape") {
    Stream stream;
    Linalg linalg(stream);
    Guarded<bf16> A(random_values<bf16>(97 * 600, 1), stream);
    Guarded<bf16> C(97 * 97, stream);
    const Gemm g{.M = 97,
                 .N = 97,
                 .K = 600,
                 .trans_b = true,
                 .A = mat(A.data(), 600),
                 .B = mat(A.data(), 600),
                 .C = mat(C.data(), 97)};
    linalg.gemm(g);
    size_t device = device_bytes_in_use();
    auto first = C.get();
    for (int i = 0; i < 3; ++i) linalg.gemm(g);
    REQUIRE(device_bytes_in_use() == device);
    REQUIRE(same_bits(C.get(), first));
    REQUIRE(&linalg.stream() == &stream);
}

TEST_CASE("runtime/linalg/linalg: products that the library refuses are counted by kind; it refuses no aligned one") {
    Stream stream;
    const int size = 64;
    Guarded<bf16> memory(random_values<bf16>(3 * size * size, 1), stream);
    auto refused = [&](int N, int ld, int offset, int calls) {
        Linalg linalg(stream);
        const Gemm g{.M = size,
                     .N = N,
                     .K = size,
                     .A = mat(memory.data(), size),
                     .B = mat(memory.data() + size * size + offset, ld),
                     .C = mat(memory.data() + 2 * size * size, ld)};
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

TEST_CASE("runtime/linalg/linalg: a bias gradient of no rows or columns is refused") {
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

TEST_CASE("runtime/linalg/linalg: gemm refuses what it cannot do and names it") {
    Stream stream;
    Linalg linalg(stream);
    Buffer<float> memory(64 * 64);
    Buffer<bf16> half(64 * 64);
    Gemm good;
    good.M = good.N = good.K = 8;
    good.A = good.B = mat(memory.data(), 8);
    good.C = mat(memory.data() + 1024, 8);
    const auto refuses = [&](const char* what, auto change) {
        Gemm g = good;
        change(g);
        REQUIRE_THAT(error_of([&] { linalg.gemm(g); }), ContainsSubstring(what));
    };
    refuses("8 x 8 x 0", [](Gemm& g) { g.K = 0; });
    refuses("batch", [](Gemm& g) { g.batch_outer = 0; });
    refuses("A is null", [](Gemm& g) { g.A.data = nullptr; });
    refuses("B is 8 x 8 but its row stride (ld) is 7", [](Gemm& g) { g.B.ld = 7; });
    refuses("A is 8 x 9", [](Gemm& g) {
        g.trans_a = true;
        g.M = 9;
    });
    refuses("B is bf16, expected float", [&](Gemm& g) { g.B = mat(half.data(), 8); });
    refuses("C is bf16", [&](Gemm& g) { g.C = mat(half.data(), 8); });
    refuses("symmetric", [](Gemm& g) {
        g.symmetric = true;
        g.N = 7;
    });
    refuses("bias is null", [](Gemm& g) { g.epilogue = Epilogue::bias; });
    refuses("bias is bf16", [&](Gemm& g) {
        g.epilogue = Epilogue::bias;
        g.bias = mat(half.data(), 8);
    });
    refuses("batch", [](Gemm& g) {
        g.epilogue = Epilogue::bias;
        g.bias = g.A;
        g.batch_inner = 2;
    });
    refuses("addend is bf16", [&](Gemm& g) { g.addend = mat(half.data(), 8); });
    refuses("aligned", [&](Gemm& g) { g.C.data = reinterpret_cast<char*>(g.C.data) + 2; });
}
