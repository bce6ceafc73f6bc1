#include "runtime/simt.h"
#include "test/model_gpu/model_gpu.h"
#include "test/support/catch.h"
#include "test/support/compare.h"

using namespace teon;
using namespace teon::test;

namespace {

__global__ void double_kernel(float* x, int n) {
    wait_for_earlier_kernels();
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] *= 2.0f;
}

}  // namespace

TEST_CASE(
    "runtime/cuda/early_launch: a kernel that starts early sees what the one before it wrote, and in-turn none does") {
    constexpr int kN = 100'000;
    Stream stream;
    for (const Kernels kernels : {Kernels::fastest, Kernels::in_turn, Kernels::portable}) {
        CAPTURE(name_of(kernels));
        stream.set_kernels(kernels);
        Guarded<float> x(std::vector<float>(kN, 1.0f), stream);
        const int64_t before = counters() ? counters()->early_launches.load() : 0;
        for (int i = 0; i < 20; ++i) launch<double_kernel>({(kN + 255) / 256, 256}, stream, x.data(), kN);
        REQUIRE(same_bits(x.get(), std::vector<float>(kN, 1024.0f * 1024.0f)));
        if (!counters() || device_info().compute_capability < 90) continue;  // only the modelled GPU counts them
        REQUIRE(counters()->early_launches - before == (kernels == Kernels::fastest ? 20 : 0));
    }
}
