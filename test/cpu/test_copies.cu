// Asynchronous copies that are waited for too late or overwritten too early, and what is undefined on a GPU.
#include "test/cpu/device_error.h"
#include "test/optim/schedule.h"
#include "test/support/catch.h"
#include "test/support/copy_pipeline.h"

using namespace teon;
using namespace teon::test;

namespace {

// Whether some order of threads gives an error, or a result that is not the right one.
template <Misuse M>
bool fails_in_some_order() {
    for (const char* order : {"forward", "reverse", "random:1", "random:2", "random:3"}) {
        const ScopedOrder scope(order);
        bool same = false;
        const std::string error =
            device_error_of([&] { same = bool(same_bits(run_pipeline<M>(), pipeline_result())); });
        if (!same || !error.empty()) return true;
    }
    return false;
}

__global__ void missing_lane_kernel(float* out) {
    uint32_t a[4] = {};
    float d[4] = {};
    if (threadIdx.x != 7) mma_m16n8k16(d, a, 0, 0);
    out[threadIdx.x] = d[0];
}

__global__ void misaligned_copy_kernel(const float* in) {
    SHARED(float, memory, 64);
    cp_async<16>(memory + 1, in, true);
}

}  // namespace

TEST_CASE("cpu/copies: copies that are read too early, by too many or too long fail on a CPU") {
    REQUIRE(fails_in_some_order<Misuse::no_wait>());
    REQUIRE(fails_in_some_order<Misuse::no_commit>());
    REQUIRE(fails_in_some_order<Misuse::too_few_groups>());
    REQUIRE(fails_in_some_order<Misuse::no_barrier>());
    REQUIRE(fails_in_some_order<Misuse::one_waits>());
    REQUIRE(fails_in_some_order<Misuse::overwritten>());
}

TEST_CASE("cpu/copies: a missing lane and a misaligned copy are errors on a CPU") {
    Stream stream;
    Buffer<float> memory(64);
    REQUIRE(device_error_of([&] { launch<missing_lane_kernel>({1, 32}, stream, memory.data()); }) != "");
    REQUIRE(device_error_of([&] { launch<misaligned_copy_kernel>({1, 32}, stream, memory.data()); }) != "");
}
