#include <algorithm>
#include <cmath>

#include "runtime/linalg/linalg.h"
#include "test/oracle/gemm.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

namespace {

std::vector<float> transposed(const std::vector<float>& x, int rows, int columns) {
    std::vector<float> t(x.size());
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) t[j * rows + i] = x[i * columns + j];
    return t;
}

// Returns whether the rows of a matrix are.
Comparison are_orthonormal(const std::vector<float>& x, int rows, int columns, double tolerance) {
    std::vector<double> identity(static_cast<size_t>(rows) * rows, 0.0);
    for (int i = 0; i < rows; ++i) identity[static_cast<size_t>(i) * rows + i] = 1.0;
    const auto wide = widen<double>(x);
    return compare(matmul_oracle(wide, wide, rows, rows, columns, false, true), identity, tolerance);
}

// Checks that A = U diag(S) Vt, that U and V have orthonormal columns, and that S is descending and not negative.
void check_svd(const std::vector<float>& a, int m, int n) {
    CAPTURE(m, n);
    Stream stream;
    Linalg linalg(stream);
    int r = std::min(m, n);
    Guarded<float> A(a, stream);
    Guarded<float> U(m * r, stream);
    Guarded<float> S(r, stream);
    Guarded<float> Vt(r * n, stream);
    linalg.svd(A.data(), m, n, U.data(), S.data(), Vt.data());
    auto u = U.get();
    auto s = S.get();
    auto vt = Vt.get();
    A.get();
    auto scaled = widen<double>(u);
    double norm = 0.0;
    for (int i = 0; i < m * r; ++i) scaled[i] *= s[i % r];
    for (float x : a) norm = std::max(norm, std::abs(static_cast<double>(x)));
    // Backward stability: the error is some roundoffs of the largest singular value (at most norm * sqrt(m n)), and
    // grows with the number of Householder reflections.
    double tolerance = 4.0 * kUnitRoundoff<float> * r;
    REQUIRE(compare(a, matmul_oracle(scaled, widen<double>(vt), m, n, r), tolerance * norm * std::sqrt(m * n)));
    REQUIRE(are_orthonormal(transposed(u, m, r), r, m, 8.0 * kUnitRoundoff<float> * (r + 8)));
    REQUIRE(are_orthonormal(vt, r, n, 8.0 * kUnitRoundoff<float> * (r + 8)));
    for (int i = 0; i < r; ++i) REQUIRE((s[i] >= 0.0f && (i == 0 || s[i] <= s[i - 1])));
}

std::vector<float> low_rank(int m, int n, int rank) {
    auto x = matmul_oracle(widen<double>(random_values<float>(m * rank, 1)),
                           widen<double>(random_values<float>(rank * n, 2)), m, n, rank);
    return {x.begin(), x.end()};
}

}  // namespace

TEST_CASE("runtime/linalg/decompositions: svd reconstructs tall, wide, square and rank-deficient matrices") {
    for (auto [m, n] : {std::pair{1, 1}, {1, 9}, {9, 1}, {33, 33}, {97, 31}, {31, 97}}) {
        check_svd(random_values<float>(m * n, 3), m, n);
        check_svd(low_rank(m, n, std::min({m, n, 3})), m, n);
        check_svd(std::vector<float>(m * n, 0.0f), m, n);
    }
}

TEST_CASE("runtime/linalg/decompositions: eigh gives ascending eigenvalues and orthonormal rows of eigenvectors") {
    Stream stream;
    Linalg linalg(stream);
    for (int n : {1, 2, 33, 97}) {
        CAPTURE(n);
        auto half = random_values<float>(n * n, 1);
        auto other = transposed(half, n, n);
        auto a = half;
        for (int i = 0; i < n * n; ++i) a[i] = 0.5f * (half[i] + other[i]);
        Guarded<float> A(a, stream);
        Guarded<float> W(n, stream);
        linalg.eigh(A.data(), n, W.data());
        auto q = A.get();
        auto w = W.get();
        auto scaled = widen<double>(q);
        for (int i = 0; i < n * n; ++i) scaled[i] *= w[i / n];
        // As for the svd; the largest eigenvalue is near sqrt(2 n).
        double tolerance = 4.0 * kUnitRoundoff<float> * (n + 8);
        REQUIRE(
            compare(a, matmul_oracle(widen<double>(q), scaled, n, n, n, true, false), tolerance * std::sqrt(2.0 * n)));
        REQUIRE(are_orthonormal(q, n, n, tolerance));
        REQUIRE(std::is_sorted(w.begin(), w.end()));
    }
}

TEST_CASE("runtime/linalg/decompositions: svd and eigh refuse NaN and infinity") {
    Stream stream;
    Linalg linalg(stream);
    Buffer<float> U(64);
    Buffer<float> S(8);
    Buffer<float> Vt(64);
    for (float bad : {NAN, INFINITY, -INFINITY}) {
        auto a = random_values<float>(64, 1);
        a[37] = bad;
        Guarded<float> A(a, stream);
        REQUIRE(contains(error_of([&] { linalg.svd(A.data(), 8, 8, U.data(), S.data(), Vt.data()); }), "svd: "));
        REQUIRE(contains(error_of([&] { linalg.eigh(A.data(), 8, S.data()); }), "eigh: "));
        REQUIRE(same_bits(A.get(), a));
    }
}

TEST_CASE("runtime/linalg/decompositions: svd and eigh give the same bits for any number of threads") {
    Stream stream;
    auto a = random_values<float>(97 * 97, 1);
    const std::vector<int> threads = {1, 2, 3};
    auto svd = [&] {
        Linalg linalg(stream);
        Guarded<float> A(a, stream);
        Guarded<float> U(97 * 97, stream);
        Guarded<float> S(97, stream);
        Guarded<float> Vt(97 * 97, stream);
        linalg.svd(A.data(), 97, 97, U.data(), S.data(), Vt.data());
        return bytes_of(U.get(), S.get(), Vt.get());
    };
    REQUIRE(same_with_any_threads(svd, threads));
    auto eigh = [&] {
        Linalg linalg(stream);
        Guarded<float> A(a, stream);
        Guarded<float> w(97, stream);
        linalg.eigh(A.data(), 97, w.data());
        return bytes_of(A.get(), w.get());
    };
    REQUIRE(same_with_any_threads(eigh, threads));
}
