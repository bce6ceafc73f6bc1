#include "runtime/linalg/symmetric_product.h"

#include <string_view>
#include <vector>

#include "test/oracle/gemm.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/gemm_layout.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

namespace {

// The n x n product X X^T, or X^T X if trans, by each of our kernels if `own_kernels`, else by gemm().
struct SymmetricCase {
    int n, K, batch = 1;
    bool trans = false;
    float beta = 0.0f;
    int padding = 1;
    bool own_kernels = false, addend = false;
    float alpha = 1.0f;
};

Gemm symmetric_gemm(int n, int K, const Mat& A, const Mat& B, const Mat& C) {
    return {.M = n, .N = n, .K = K, .trans_b = true, .A = A, .B = B, .C = C, .symmetric = true};
}

// The n x n matrix whose upper half is the lower half's mirror image.
template <typename T>
std::vector<T> mirrored(std::vector<T> c, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < i; ++j) c[j * n + i] = c[i * n + j];
    return c;
}

// Returns a batch of random symmetric matrices.
template <typename T>
std::vector<T> symmetric_values(const Layout& layout, uint64_t seed) {
    auto x = random_values<T>(layout.size(), seed);
    for (int m = 0; m < layout.inner * layout.outer; ++m) {
        T* first = x.data() + layout.matrix(m);
        for (int64_t i = 0; i < layout.rows; ++i)
            for (int64_t j = 0; j < i; ++j) first[j * layout.ld + i] = first[i * layout.ld + j];
    }
    return x;
}

template <typename T, typename TC>
void check_symmetric(const SymmetricCase& s) {
    CAPTURE(s.n, s.K, s.batch, s.trans, s.beta, s.padding, s.own_kernels, s.addend, s.alpha);
    CAPTURE(name_of(dtype_of<T>), name_of(dtype_of<TC>));
    Stream stream;
    Linalg linalg(stream);
    const int n = s.n;
    const int K = s.K;
    Layout lx(s.trans ? K : n, s.trans ? n : K, s.padding, s.batch, 1);
    Layout lc(n, n, 5 * s.padding, s.batch, 1);
    auto x = random_values<T>(lx.size(), 1);
    auto before = symmetric_values<TC>(lc, 2);
    auto addend = symmetric_values<TC>(lc, 3);
    if (s.beta == 0.0f || s.addend) std::fill(before.begin(), before.end(), TC(NAN));
    if (s.beta == 0.0f) std::fill(addend.begin(), addend.end(), TC(NAN));
    Guarded<T> X(x, stream);
    Guarded<TC> Addend(addend, stream);
    Gemm g = symmetric_gemm(n, K, lx.mat(X.data()), lx.mat(X.data()), {});
    g.trans_a = s.trans;
    g.trans_b = !s.trans;
    g.alpha = s.alpha;
    g.beta = s.beta;
    g.batch_inner = s.batch;
    if (s.addend) g.addend = lc.mat(Addend.data());
    const auto check = [&](auto multiply) {
        Guarded<TC> C(before, stream);
        g.C = lc.mat(C.data());
        multiply();
        auto after = C.get();
        REQUIRE(same_bits(lc.blank(after), lc.blank(before)));
        for (int m = 0; m < s.batch; ++m) {
            auto wide = widen<Tracked>(lx.take(x, m));
            auto expected = matmul_oracle(wide, wide, n, n, K, s.trans, !s.trans);
            auto added = widen<Tracked>(lc.take(s.addend ? addend : before, m));
            for (size_t i = 0; i < expected.size(); ++i) {
                expected[i] *= static_cast<double>(s.alpha);
                if (s.beta != 0.0f) expected[i] += Tracked(s.beta) * added[i];
            }
            auto c = lc.take(after, m);
            // A diagonal element is a sum of K squares. All have one sign, so their roundings do not average out.
            REQUIRE(compare(c, expected, kSumRoundings + 0.02 * K));
            REQUIRE(same_bits(c, mirrored(c, n)));
        }
    };
    if (!s.own_kernels) return check([&] { linalg.gemm(g); });
    g.C = lc.mat(Addend.data());
    const auto kernels = symmetric_kernels(g, g.C, stream);
    REQUIRE_FALSE(kernels.empty());
    for (const SymmetricKernel* kernel : kernels) {
        CAPTURE(kernel->name);
        check([&] { kernel->run(g, s.addend ? g.addend : g.C, stream); });
    }
}

// Computes g with the first kernel that can.
void multiply(const Gemm& g, const Stream& stream) {
    const auto kernels = symmetric_kernels(g, g.C, stream);
    REQUIRE_FALSE(kernels.empty());
    kernels.front()->run(g, g.C, stream);
}

// Checks A B for symmetric A and B that commute, so that A B is symmetric. All are small integers: every sum is exact.
void check_powers(int n) {
    CAPTURE(n);
    Stream stream;
    std::vector<bf16> a(static_cast<size_t>(n) * n, bf16(0.0f));
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j : {i * 5 % n, i * 11 % n}) a[i * n + j] = a[j * n + i] = bf16(i % 2 == 0 ? 1.0f : -1.0f);
    const auto square = matmul_oracle(widen<double>(a), widen<double>(a), n, n, n);
    const auto cube = matmul_oracle(square, widen<double>(a), n, n, n);
    std::vector<bf16> b;
    for (double v : square) b.push_back(bf16(static_cast<float>(v)));
    Guarded<bf16> A(a, stream);
    Guarded<bf16> B(b, stream);
    Guarded<bf16> C(std::ssize(a), stream);
    const Gemm g = symmetric_gemm(n, n, mat(A.data(), n), mat(B.data(), n), mat(C.data(), n));
    multiply(g, stream);
    REQUIRE(compare(C.get(), cube, 0.0));
}

}  // namespace

TEST_CASE("runtime/linalg/linalg: a symmetric product equals the full one and is mirrored exactly") {
    for (int n : {1, 33, 97, 128, 259, 600})
        for (bool trans : {false, true})
            for (float beta : {0.0f, 0.5f}) {
                const SymmetricCase s{.n = n, .K = 40, .batch = n < 200 ? 3 : 1, .trans = trans, .beta = beta};
                check_symmetric<float, float>(s);
                check_symmetric<bf16, bf16>(s);
                check_symmetric<f16, f16>(s);
                check_symmetric<bf16, float>(s);
            }
    check_symmetric<float, float>({.n = 260, .K = 256, .batch = 3, .trans = true, .beta = 0.5f});  // split on a CPU
    check_symmetric<bf16, bf16>({.n = 259, .K = 300, .beta = 1.0f});
    check_symmetric<bf16, bf16>({.n = 136, .K = 72, .beta = 0.5f, .padding = 8});  // by our own kernel on a GPU
    check_symmetric<bf16, bf16>({.n = 1100, .K = 1024, .beta = 1.0f});  // large enough to be split on every backend
}

TEST_CASE("runtime/linalg/symmetric_product: equals the full product and is mirrored exactly, whatever the sizes") {
    auto check = [](SymmetricCase s) {
        s.own_kernels = true;
        check_symmetric<bf16, bf16>(s);
        check_symmetric<f16, f16>(s);
    };
    for (auto [n, K] : {std::pair{8, 8}, {128, 64}, {136, 72}, {264, 200}, {384, 40}})
        for (bool trans : {false, true}) {
            check({.n = n, .K = K, .trans = trans, .padding = 0});
            check({.n = n, .K = K, .trans = trans, .beta = -0.5f, .padding = 8, .alpha = 3.0f});
        }
    check({.n = 72, .K = 31, .trans = true, .padding = 8});  // with trans, K may be odd
    for (bool trans : {false, true}) {
        check({.n = 200, .K = 72, .batch = 3, .trans = trans, .beta = 1.0f, .padding = 16, .addend = true});
        check({.n = 24, .K = 136, .batch = 5, .trans = trans, .padding = 0, .addend = true});
        // 13 slices fill each of the four stages of wgmma's ring three times. The second pair of tiles is half empty.
        check({.n = 264, .K = 832, .batch = 2, .trans = trans, .beta = 0.5f, .padding = 0, .alpha = -1.0f});
    }
}

TEST_CASE(
    "runtime/linalg/symmetric_product: sm_90 has two kernels, of which one needs tensor maps; portable is the other") {
    alignas(16) static bf16 memory[64 * 64];
    Stream stream;
    const Mat m = mat(memory, 64, 64 * 64);
    Gemm g = symmetric_gemm(64, 64, m, m, m);
    g.batch_inner = 2;
    const auto names = [&] {
        std::vector<std::string_view> names;
        for (const SymmetricKernel* kernel : symmetric_kernels(g, g.C, stream)) names.push_back(kernel->name);
        return names;
    };
    const std::vector<std::string_view> mma = {"tiles up to the diagonal"};
    std::vector<std::string_view> all = mma;
    if (device_info().compute_capability == 90) all.insert(all.begin(), "pairs of tiles up to the diagonal");
    REQUIRE(names() == all);
    g.B.stride_inner = 64 * 64 + 8;  // not a multiple of the row stride
    REQUIRE(names() == mma);
    g.B.stride_inner = 0;
    REQUIRE(names() == mma);
    g.batch_inner = 1;  // then no stride counts
    REQUIRE(names() == all);
    stream.set_kernels(Kernels::portable);
    REQUIRE(names() == mma);
    g.symmetric = false;
    REQUIRE(names().empty());
}

TEST_CASE("runtime/linalg/symmetric_product: powers of a matrix are exact where integers are") {
    for (int n : {40, 128, 200}) check_powers(n);
}

TEST_CASE("runtime/linalg/symmetric_product: the result is symmetric even where sums differ before rounding") {
    Stream stream;
    const int n = 200;
    const int K = 72;
    Guarded<f16> A(random_values<f16>(n * K, 1), stream);
    Guarded<f16> B(random_values<f16>(n * K, 2), stream);
    Guarded<f16> C(n * n, stream);
    const Gemm g = symmetric_gemm(n, K, mat(A.data(), K), mat(B.data(), K), mat(C.data(), n));
    multiply(g, stream);
    REQUIRE(same_bits(C.get(), mirrored(C.get(), n)));
}

TEST_CASE("runtime/linalg/symmetric_product: the same bits on any number of OS threads") {
    Stream stream;
    const int n = 136;
    const int K = 136;
    Guarded<bf16> X(random_values<bf16>(n * K, 1), stream);
    REQUIRE(same_with_any_threads([&] {
        Guarded<bf16> C(n * n, stream);
        const Gemm g = symmetric_gemm(n, K, mat(X.data(), K), mat(X.data(), K), mat(C.data(), n));
        multiply(g, stream);
        return bytes_of(C.get());
    }));
}

TEST_CASE("runtime/linalg/symmetric_product: unsupported products go to the library") {
    alignas(16) static bf16 memory[64 * 64];
    const Gemm good = symmetric_gemm(64, 64, mat(memory, 64), mat(memory, 64), mat(memory, 64));
    auto supported = [&](auto change) {
        Gemm g = good;
        change(g);
        return symmetric_product_supports(g, g.C);
    };
    REQUIRE(supported([](Gemm&) {}));
    REQUIRE(supported([](Gemm& g) {
        g.trans_a = true;
        g.trans_b = false;
        g.K = 63;
    }));
    REQUIRE_FALSE(supported([](Gemm& g) { g.symmetric = false; }));
    REQUIRE_FALSE(supported([](Gemm& g) { g.trans_a = true; }));
    REQUIRE_FALSE(supported([](Gemm& g) { g.K = 63; }));
    REQUIRE_FALSE(supported([](Gemm& g) { g.M = g.N = 63; }));
    REQUIRE_FALSE(supported([](Gemm& g) { g.A.ld = 65; }));
    REQUIRE_FALSE(supported([](Gemm& g) {
        g.batch_inner = 2;
        g.C.stride_inner = 65;
    }));
    REQUIRE_FALSE(supported([](Gemm& g) { g.B.data = memory + 1; }));
    REQUIRE_FALSE(supported([](Gemm& g) { g.C.dtype = DType::f32; }));
    REQUIRE_FALSE(supported([](Gemm& g) { g.A.dtype = g.B.dtype = g.C.dtype = DType::f32; }));
}

TEST_CASE("runtime/linalg/symmetric_product: a rule decides which kernel pays, and where the library does") {
    const SymmetricKernel* mma = symmetric_kernel("tiles up to the diagonal");
    const SymmetricKernel* wgmma = symmetric_kernel("pairs of tiles up to the diagonal");
    const auto fastest = [&](const std::vector<const SymmetricKernel*>& kernels, int side, int batch) {
        return fastest_symmetric_kernel(kernels, {side, side, batch}, 132);
    };
    // Tiles fill an H200 once or twice (252 of 264, 528 of 2 x 264), which was measured to be fastest
    // (bench/RESULTS.md). A single small matrix does not fill it.
    REQUIRE(fastest({wgmma, mma}, 768, 12) == mma);
    REQUIRE(fastest({wgmma, mma}, 4096, 1) == mma);
    if (kGpu) REQUIRE(fastest({wgmma, mma}, 768, 1) == nullptr);  // a CPU's library has smaller blocks
    // Many rounds: wgmma beats the library's full product, as measured, but not its blocks, as predicted.
    REQUIRE(fastest({wgmma, mma}, 2048, 22) == nullptr);
    REQUIRE(fastest({}, 2048, 22) == nullptr);
    for (int n = 1; n <= 9; ++n) {
        int pairs = 0;
        for (int down = 0; down < n; down += 2)
            for (int across = 0; across < n + n % 2; ++across) pairs += across <= down + 1;
        REQUIRE(symmetric_hopper_pairs(128 * n, 1) == pairs);
        REQUIRE(symmetric_hopper_pairs(128 * n - 120, 3) == 3 * pairs);
    }
}
