// Phases of a program by name, in an external profiler of NVIDIA's.
#include <string>
#include <vector>

#include "runtime/cuda/named_range.h"
#include "runtime/simt.h"
#include "test/model_gpu/model_gpu.h"
#include "test/support/catch.h"
#include "test/support/transfer.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

using namespace teon;
using namespace teon::test;

namespace {

std::vector<std::string> calls;  // that an external profiler gets

__global__ void increment_kernel(int* x) {
    wait_for_earlier_kernels();
    if (threadIdx.x == 0) ++*x;
}

}  // namespace

// Takes the place of nsys, by NVTX's static injection, which works since the second version of its loader.
#if defined(NVTX_LOAD_SEQUENCE_VERSION) && NVTX_LOAD_SEQUENCE_VERSION >= 2

static int begin_range(const char* name) {
    calls.emplace_back(name);
    return 0;
}
static int end_range() {
    calls.emplace_back("end");
    return 0;
}
static int initialize(NvtxGetExportTableFunc_t tables) {
    const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
    NvtxFunctionTable table = nullptr;
    unsigned size = 0;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
    *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(begin_range);
    *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(end_range);
    return 1;
}
// Before the first range, at which NVTX calls it.
static const bool kHearsRanges = [] {
    InitializeInjectionNvtx2_fnptr = initialize;
    return true;
}();
#else
constexpr bool kHearsRanges = false;
#endif

TEST_CASE("model_gpu/named_range: an external profiler gets its names, and kernels in it start early") {
    constexpr int kLaunches = 4;
    Stream stream;
    Buffer<int> x(1);
    zero(x.data(), 1, stream);
    const int64_t before = counters() ? counters()->early_launches.load() : 0;
    calls.clear();
    {
        const NamedRange step("step");
        for (int i = 0; i < kLaunches; ++i) {
            const NamedRange kernel("kernel");
            launch<increment_kernel>({1, 32}, stream, x.data());
        }
    }
    REQUIRE(fetch(x, stream)[0] == kLaunches);
    if (counters() && device_info().compute_capability >= 90)  // the modelled GPU
        REQUIRE(counters()->early_launches - before == kLaunches);
    if (!kHearsRanges) SKIP_TEST("without NVTX nobody gets the names");
    const std::vector<std::string> expected = {"step",   "kernel", "end",    "kernel", "end",
                                               "kernel", "end",    "kernel", "end",    "end"};
    REQUIRE(calls == expected);
}
