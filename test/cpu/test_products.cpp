// Tests that products are right for every small shape, that a matrix's bits do not depend on its neighbours in a batch,
// and that a library's wrong product is noticed.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <vector>

#include "cpu/instructions.h"
#include "cpu/matmul.h"
#include "cpu/threads.h"
#include "test/oracle/gemm.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/gemm_layout.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::cpu;
using namespace teon::test;

namespace {

// Added to element (0, 0) of each of oneDNN's float outputs.
std::atomic<float> fault = 0.0f;

}  // namespace

// Takes the place of oneDNN's function in this program.
extern "C" dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int n,
                                                const dnnl_exec_arg_t* arguments) {
    static const auto next =
        reinterpret_cast<decltype(&dnnl_primitive_execute)>(dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
    const dnnl_status_t status = next(primitive, stream, n, arguments);
    for (int i = 0; fault != 0.0f && i < n; ++i) {
        void* data = nullptr;
        if (arguments[i].arg != DNNL_ARG_DST) continue;
        dnnl_memory_get_data_handle(arguments[i].memory, &data);
        *static_cast<float*>(data) += fault;
    }
    return status;
}

namespace {

struct Case {
    int M, N, K, batch;
    bool trans_a, trans_b, accumulate, bias;
    int padding;
    float alpha;
};

std::string text_of(const Case& c) {
    return fmt::format("{} x {} x {}{}{}, {} of them, {} + {} C, bias {}, padding {}", c.M, c.N, c.K,
                       c.trans_a ? " TA" : "", c.trans_b ? " TB" : "", c.batch, c.alpha, c.accumulate, c.bias,
                       c.padding);
}

// Every K from 1 to 130, each with several M and N: small, odd, even, at and beside the sizes of tiles.
std::vector<Case> cases(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
    const int edges[] = {1, 2, 15, 16, 17, 31, 32, 33, 37, 48, 63, 64, 65, 96, 127, 128, 129};
    const auto size = [&] { return below(2) == 0 ? edges[below(std::size(edges))] : 1 + below(130); };
    std::vector<Case> all;
    for (int K = 1; K <= 130; ++K) {
        for (int i = 0; i < 4; ++i) {
            all.push_back({size(), size(), K, 1 + below(3), (i & 1) != 0, (i & 2) != 0, below(2) == 0, below(3) == 0,
                           below(2) * (1 + below(9)), 1.0f});
            if (!all.back().bias && below(3) == 0) all.back().alpha = 0.75f;
        }
    }
    return all;
}

std::vector<double> magnitudes(std::vector<double> values) {
    for (double& x : values) x = std::abs(x);
    return values;
}

Matrix matrix(const Layout& layout, const void* data) { return {data, layout.ld, layout.stride_inner}; }

// Compares every element with the sum in double, and the padding with what it was.
template <typename T, typename TC>
void check(const Case& c, uint64_t seed) {
    const Layout a(c.trans_a ? c.K : c.M, c.trans_a ? c.M : c.K, c.padding, c.batch, 1);
    const Layout b(c.trans_b ? c.N : c.K, c.trans_b ? c.K : c.N, c.padding, c.batch, 1);
    const Layout d(c.M, c.N, c.padding, c.batch, 1);
    const auto A = random_values<T>(a.size(), seed);
    const auto B = random_values<T>(b.size(), seed + 1);
    const auto before = random_values<TC>(d.size(), seed + 2);
    const auto bias = random_values<TC>(c.N, seed + 3);
    auto C = before;
    matmul({.M = c.M,
            .N = c.N,
            .K = c.K,
            .batch = c.batch,
            .trans_a = c.trans_a,
            .trans_b = c.trans_b,
            .in = dtype_of<T>,
            .out = dtype_of<TC>,
            .A = matrix(a, A.data()),
            .B = matrix(b, B.data()),
            .addend = matrix(d, C.data()),
            .C = C.data(),
            .ldc = d.ld,
            .stride_c = d.stride_inner,
            .alpha = c.alpha,
            .beta = c.accumulate ? 1.0f : 0.0f,
            .bias = c.bias ? bias.data() : nullptr});
    REQUIRE(same_bits(d.blank(C), d.blank(before)));
    for (int i = 0; i < c.batch; ++i) {
        const auto x = widen<double>(a.take(A, i));
        const auto y = widen<double>(b.take(B, i));
        const auto old = widen<double>(d.take(before, i));
        const auto product = matmul_oracle(x, y, c.M, c.N, c.K, c.trans_a, c.trans_b);
        const auto sizes = matmul_oracle(magnitudes(x), magnitudes(y), c.M, c.N, c.K, c.trans_a, c.trans_b);
        const auto result = widen<double>(d.take(C, i));
        for (size_t j = 0; j < result.size(); ++j) {
            const double added =
                (c.accumulate ? old[j] : 0.0) + (c.bias ? static_cast<double>(static_cast<float>(bias[j % c.N])) : 0.0);
            const double alpha = static_cast<double>(c.alpha);
            const double expected = alpha * product[j] + added;
            const double tolerance = kSumRoundings * kUnitRoundoff<float> * (2 * alpha * sizes[j] + std::abs(added)) +
                                     kUnitRoundoff<TC> * std::abs(expected) + kUnderflow<TC>;
            if (std::abs(result[j] - expected) <= tolerance) continue;
            FAIL(text_of(c) << ": matrix " << i << ", element (" << j / c.N << ", " << j % c.N << ") is " << result[j]
                            << " instead of " << expected);
        }
    }
}

// The product of `count` matrices of width x width x K, of which the first is always the same.
template <typename T>
std::vector<T> first_of(int width, int K, int count, bool trans_a, bool trans_b,
                        void (*multiply)(const Matmul&) = matmul) {
    const int64_t terms = int64_t{width} * K;
    const int64_t size = int64_t{width} * width;
    auto A = random_values<T>(count * terms, 5);
    auto B = random_values<T>(count * terms, 6);
    std::vector<T> C(static_cast<size_t>(count * size));
    multiply({.M = width,
              .N = width,
              .K = K,
              .batch = count,
              .trans_a = trans_a,
              .trans_b = trans_b,
              .in = dtype_of<T>,
              .out = dtype_of<T>,
              .A = {A.data(), trans_a ? width : K, terms},
              .B = {B.data(), trans_b ? K : width, terms},
              .addend = {C.data(), width, size},
              .C = C.data(),
              .ldc = width,
              .stride_c = size});
    C.resize(size);
    return C;
}

template <typename T>
void check_batches() {
    for (const int width : {128, 512}) {
        for (const bool trans_b : {false, true}) {
            const std::vector<T> alone = first_of<T>(width, width, 1, false, trans_b);
            for (int count = 2; count <= 12; ++count) {
                INFO(name_of(dtype_of<T>)
                     << ", " << count << " matrices of " << width << ", B transposed: " << trans_b);
                REQUIRE(same_bits(first_of<T>(width, width, count, false, trans_b), alone));
            }
        }
    }
}

}  // namespace

TEST_CASE("cpu/products: every K from 1 to 130 equals sums in double, with odd and even M and N") {
    uint64_t seed = 1;
    for (const Case& c : cases(48)) {
        check<bf16, bf16>(c, seed);
        check<bf16, float>(c, seed + 1);
        check<float, float>(c, seed + 2);
        if (c.K % 3 == 0) check<f16, f16>(c, seed + 3);
        seed += 4;
    }
}

TEST_CASE("cpu/products: long sums of a transposed A, as of the gradients of weights, equal sums in double") {
    uint64_t seed = 7;
    for (const auto [M, N, K] : {std::array{65, 70, 1024}, std::array{300, 130, 2048}, std::array{33, 600, 3072},
                                 std::array{17, 1, 8192}, std::array{40, 50, 1028}, std::array{40, 50, 1026}})
        for (const bool trans_b : {false, true}) {
            const Case c{M, N, K, trans_b ? 2 : 1, true, trans_b, trans_b, N == 70, 3, N == 70 ? 1.0f : 0.75f};
            check<bf16, bf16>(c, seed);
            check<bf16, float>(c, seed + 1);
            check<float, float>(c, seed + 2);
            check<f16, f16>(c, seed + 3);
            seed += 4;
        }
}

// A transposed A is multiplied in slices of K, of which only one may add the bias: after the last slice. On CPUs that
// multiply bf16 in hardware, a product with a dense float output could otherwise be finished slice by slice.
TEST_CASE("cpu/products: a bias is added once, however long the sum and whatever is transposed") {
    uint64_t seed = 11;
    for (const auto [M, N, K] : {std::array{40, 130, 704}, std::array{40, 130, 706}, std::array{65, 256, 1408},
                                 std::array{33, 260, 2200}, std::array{17, 129, 1025}})
        for (const int kind : {0, 1, 2, 3}) {
            const Case c{M, N, K, 1, kind % 2 == 0, kind / 2 == 1, K == 1408, true, K == 706 ? 3 : 0, 1.0f};
            check<bf16, bf16>(c, seed);
            check<bf16, float>(c, seed + 1);
            check<float, float>(c, seed + 2);
            check<f16, f16>(c, seed + 3);
            check<f16, float>(c, seed + 4);
            seed += 5;
        }
}

TEST_CASE("cpu/products: the bits of a long sum of a transposed A depend neither on threads nor on the batch") {
    const auto product = [](int count) { return first_of<bf16>(384, 1024, count, true, false); };
    REQUIRE(same_with_any_threads([&] { return bytes_of(product(1)); }));
    REQUIRE(same_bits(product(2), product(1)));
}

TEST_CASE("cpu/products: a matrix's bits do not depend on how many matrices share its batch") {
    check_batches<float>();
    check_batches<bf16>();
}

TEST_CASE("cpu/products: a symmetric product's bits depend neither on threads nor on the batch") {
    for (const bool trans_a : {false, true}) {
        const auto product = [&](int width, int count) {
            return first_of<bf16>(width, 192, count, trans_a, !trans_a, matmul_symmetric);
        };
        for (const int width : {200, 800}) {
            REQUIRE(same_with_any_threads([&] { return bytes_of(product(width, 1)); }));
            REQUIRE(same_bits(product(width, 3), product(width, 1)));
        }
    }
}

TEST_CASE("cpu/products: a library's wrong product is an error that names library, shape and remedy, once per kind") {
    const int threads = set_thread_count(1);
    std::vector<float> A(41 * 43, 1.0f);
    std::vector<float> B(43 * 47, 1.0f);
    std::vector<float> C(41 * 47);
    const auto multiply = [&] {
        matmul({.M = 41,
                .N = 47,
                .K = 43,
                .A = {A.data(), 43},
                .B = {B.data(), 47},
                .addend = {C.data(), 47},
                .C = C.data(),
                .ldc = 47});
    };
    fault = 0.01f;
    std::fill(A.begin(), A.end(), 0.0f);
    const std::string zeros = error_of(multiply);
    std::fill(A.begin(), A.end(), std::numeric_limits<float>::infinity());
    const std::string infinite = error_of(multiply);  // no sum to compare with
    std::fill(A.begin(), A.end(), 1.0f);
    const std::string wrong = error_of(multiply);
    fault = 1e-6f;  // less than rounding
    const std::string rounded = error_of(multiply);
    fault = 0.01f;
    const std::string later = error_of(multiply);
    fault = 0.0f;
    set_thread_count(threads);
    REQUIRE(contains(zeros, "instead of 0"));
    REQUIRE(infinite.empty());
    REQUIRE(contains(wrong, matmul_library() + " multiplies 41 x 47 x 43 (M x N x K) float matrices wrongly"));
    REQUIRE(contains(wrong, "element (0, 0) is 43.0099983 instead of 43; "));
    REQUIRE(contains(wrong, "install another version of oneDNN"));
    REQUIRE(rounded.empty());
    REQUIRE(later.empty());  // a kind is checked until a check has succeeded
}
