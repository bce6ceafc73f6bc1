#include "kernels/embedding.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/device_batch.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

// One thread may add all n rows of an id. The terms have random signs, so that partial sums grow to about sqrt(n), and
// their n rounding errors add up to about sqrt(n) of them: one rounding of the sum of n magnitudes. The factor 4 leaves
// room for the worst of many columns.
static constexpr double kRoundings = 4.0;

namespace {
struct Shape {
    int N, C, V;
};
}  // namespace
// V = 1: all rows form one segment. Large V: most segments have one row. On a CPU, a warp processes rows of more than
// 2048 elements.
static const std::vector<Shape> kShapes = {{1, 1, 1},      {31, 33, 5},   {33, 31, 100}, {97, 97, 1},    {257, 128, 13},
                                           {128, 257, 40}, {300, 768, 7}, {70, 2049, 2}, {131, 2304, 9}, {40, 4160, 1},
                                           {1, 2304, 4},   {9, 8256, 3},  {5, 64, 1000}, {2000, 64, 300}};

TEMPLATE_TEST_CASE("kernels/embedding: forward is the rounded sum of two rows, or a copied row", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, C, V] : kShapes) {
        INFO("N = " << N << ", C = " << C << ", V = " << V);
        const int64_t n = int64_t{N} * C;
        const auto tokens = random_ints(N, 1, V);
        const auto positions = random_ints(N, 2, N);
        const auto wte = random_values<T>(int64_t{V} * C, 3);
        const auto wpe = random_values<T>(n, 4);
        std::vector<T> sum;
        std::vector<T> copied;
        for (int i = 0; i < N; ++i) {
            for (int j = 0; j < C; ++j) {
                const T a = wte[int64_t{tokens[i]} * C + j];
                const T b = wpe[int64_t{positions[i]} * C + j];
                copied.push_back(a);
                sum.push_back(T(static_cast<float>(a) + static_cast<float>(b)));
            }
        }
        Guarded<int> tokens_device(tokens, stream);
        Guarded<int> positions_device(positions, stream);
        Guarded<T> wte_device(wte, stream);
        Guarded<T> wpe_device(wpe, stream);
        Guarded<T> out(n, stream);
        embedding_forward(out.data(), tokens_device.data(), positions_device.data(), wte_device.data(),
                          wpe_device.data(), N, C, stream);
        REQUIRE(same_bits(out.get(), sum));
        T* none = nullptr;
        embedding_forward(out.data(), tokens_device.data(), nullptr, wte_device.data(), none, N, C, stream);
        REQUIRE(same_bits(out.get(), copied));
    }
}

TEMPLATE_TEST_CASE("kernels/embedding: backward adds to the rows that ids name, and to no other", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, C, V] : kShapes) {
        INFO("N = " << N << ", C = " << C << ", V = " << V);
        const auto ids = random_ints(N, 5, V);
        const auto dout = random_values<T>(int64_t{N} * C, 6);
        const auto before = random_values<float>(int64_t{V} * C, 7);
        std::vector<Tracked> expected = widen<Tracked>(before);
        std::vector<bool> named(V, false);
        for (int i = 0; i < N; ++i) {
            named[ids[i]] = true;
            for (int j = 0; j < C; ++j)
                expected[int64_t{ids[i]} * C + j] += Tracked(static_cast<float>(dout[int64_t{i} * C + j]));
        }
        Guarded<int> ids_device(ids, stream);
        Guarded<int> order_device(order_of(ids), stream);
        Guarded<T> dout_device(dout, stream);
        Guarded<float> dtable(before, stream);
        embedding_backward(dtable.data(), dout_device.data(), ids_device.data(), order_device.data(), N, C, stream);
        const auto actual = dtable.get();
        REQUIRE(compare(actual, expected, kRoundings));
        bool others_untouched = true;
        for (size_t i = 0; i < actual.size(); ++i) others_untouched &= named[i / C] || actual[i] == before[i];
        REQUIRE(others_untouched);
    }
}

TEMPLATE_TEST_CASE("kernels/embedding: the same bits on any number of OS threads", "", float, bf16) {
    using T = TestType;
    Stream stream;
    for (auto [N, C, V] : {Shape{257, 128, 13}, Shape{70, 2049, 2}, Shape{131, 2304, 9}}) {
        const auto ids = random_ints(N, 5, V);
        Guarded<int> ids_device(ids, stream);
        Guarded<int> order_device(order_of(ids), stream);
        Guarded<T> dout(random_values<T>(int64_t{N} * C, 6), stream);
        Guarded<T> out(int64_t{N} * C, stream);
        Guarded<T> wte(random_values<T>(int64_t{V} * C, 8), stream);
        Guarded<float> dtable(int64_t{V} * C, stream);
        REQUIRE(same_with_any_threads([&, N = N, C = C, V = V] {
            zero(dtable.data(), int64_t{V} * C, stream);
            embedding_forward(out.data(), ids_device.data(), ids_device.data(), wte.data(), wte.data(), N, C, stream);
            embedding_backward(dtable.data(), dout.data(), ids_device.data(), order_device.data(), N, C, stream);
            return bytes_of(out.get(), dtable.get());
        }));
    }
}
