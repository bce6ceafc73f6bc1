#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/qk_norm.h"

#include "test/support/catch.h"

using namespace teon;

// Fewer rows may form more chunks. The canaries in each operation's tests show that the scratch for N rows suffices for
// N rows.
TEST_CASE("kernels/column_sums: the scratch for sums over N rows suffices for fewer rows") {
    const auto check = [](auto bytes) {
        for (int N = 2; N <= 40000; ++N) REQUIRE(bytes(N - 1, 3) <= bytes(N, 3));
    };
    check([](int N, int C) { return qk_norm_backward_scratch_bytes(N, {1, 1, C, C}); });
    for (const NormFunction& row : kNorms)
        check([&](int N, int C) { return norm_backward_scratch_bytes(row.kind, N, C); });
    for (const ActivationFunction& row : kActivations)
        check([&](int N, int C) { return activation_backward_scratch_bytes(row.kind, N, C); });
}
