#include "kernels/gelu.h"
#include "kernels/layernorm.h"
#include "kernels/qk_norm.h"
#include "kernels/relu2.h"
#include "kernels/rmsnorm.h"

#include "test/support/catch.h"

using namespace teon;

// Fewer rows may form more chunks. The canaries in each operation's tests show that the scratch for N rows suffices for
// N rows.
TEST_CASE("kernels/column_sums: the scratch for sums over N rows suffices for fewer rows") {
    const auto qk_norm_bytes = [](int N, int C) { return qk_norm_backward_scratch_bytes(N, {1, 1, C, C}); };
    for (size_t (*bytes)(int N, int C) : {layernorm_backward_scratch_bytes, rmsnorm_backward_scratch_bytes,
                                          gelu_backward_scratch_bytes, relu2_backward_scratch_bytes, +qk_norm_bytes})
        for (int N = 2; N <= 40000; ++N) REQUIRE(bytes(N - 1, 3) <= bytes(N, 3));
}
