// One tile copied by the tensor memory accelerator, and one product of a warpgroup. The kernels of flash attention use
// both in long pipelines; here each is alone, so that a fault has a name.
#include "runtime/tensor_cores/warpgroup.h"

#include "test/oracle/gemm.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/gemm_layout.h"
#include "test/support/skip.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr int kRows = 64;
constexpr int kColumns = kTensorTileColumns;
constexpr int kTileBytes = kRows * kColumns * static_cast<int>(sizeof(bf16));

// copy: tile A as it lies in shared memory, without its swizzle. D (64 x 64) = A B^T.
__global__ void __launch_bounds__(kWarpgroupThreads)
    tiles_kernel(bf16* copy, float* D, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b) {
    wait_for_earlier_kernels();
    if constexpr (kWarpgroups) {
        SHARED(uint64_t, barrier, 1);
        DYN_SHARED(bf16, tiles);
        const SharedAddress A(tiles);
        const SharedAddress B = A + kTileBytes;
        const int thread = static_cast<int>(threadIdx.x);
        if (thread == 0) {
            mbarrier_init(barrier, 1);
            mbarrier_init_done();
        }
        __syncthreads();
        if (thread == 0) {
            mbarrier_expect(barrier, 2 * kTileBytes);
            tensor_copy(A, a, 0, 0, 0, barrier);
            tensor_copy(B, b, 0, 0, 0, barrier);
        }
        mbarrier_wait(barrier, 0);
        for (int i = thread; i < kRows * kColumns; i += kWarpgroupThreads) {
            const int row = i / kColumns;
            const int chunk = i % kColumns / 8 ^ row % 8;
            copy[i] = tiles[row * kColumns + 8 * chunk + i % 8];
        }
        float d[8][4];
        warpgroup_begin();
#pragma unroll
        for (int k = 0; k < kColumns / 16; ++k)
            warpgroup_multiply(d, TileOperand(A) + 32 * k, TileOperand(B) + 32 * k, k > 0);
        warpgroup_commit();
        warpgroup_wait<0>(d);
        const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int j = 0; j < 4; ++j) D[(row + j / 2 * 8) * kRows + 8 * n + thread % 4 * 2 + j % 2] = d[n][j];
    }
}

}  // namespace

TEST_CASE(
    "runtime/tensor_cores/warpgroup: a copied tile has the tensor's elements, 0 beyond them, and multiplies as the "
    "oracle") {
    if (!has_warpgroup_code<tiles_kernel>()) SKIP_TEST("needs compute capability 9.0, and code for it");
    constexpr int kHeld = 50;  // rows that the tensors have
    Stream stream;
    std::vector<bf16> a = random_values<bf16>(kHeld * kColumns, 1);
    std::vector<bf16> b = random_values<bf16>(kHeld * kColumns, 2);
    Guarded<bf16> A(a, stream);
    Guarded<bf16> B(b, stream);
    Guarded<bf16> copy(kRows * kColumns, stream);
    Guarded<float> D(kRows * kRows, stream);
    const auto map = [&](const bf16* x) {
        return tensor_map(x, 1, kHeld, kColumns, kHeld * kColumns, kColumns, kRows);
    };
    launch<tiles_kernel>({1, kWarpgroupThreads, 2 * kTileBytes}, stream, copy.data(), D.data(), map(A.data()),
                         map(B.data()));
    a.resize(kRows * kColumns, bf16(0.0f));
    b.resize(kRows * kColumns, bf16(0.0f));
    REQUIRE(same_bits(copy.get(), a));
    const auto expected = matmul_oracle(widen<Tracked>(a), widen<Tracked>(b), kRows, kRows, kColumns, false, true);
    REQUIRE(compare(D.get(), expected, kSumRoundings));
}
