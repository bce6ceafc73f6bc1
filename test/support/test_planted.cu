// Tells main.cpp of errors that stay, and has two test cases that fail on purpose: a kernel that never ends and one
// that writes to an invalid address. They are hidden; dev/gpu_first.py --plant runs them among the others, none of
// which may be lost.
#include "runtime/simt.h"
#include "test/support/catch.h"
#include "test/support/lasting_error.h"

using namespace teon;

namespace {

const bool kAsksGpu = [] {
    test::lasting_error = []() -> std::string {
        try {
            if (kGpu) Stream().synchronize();
            return "";
        } catch (const Error& error) { return error.what(); }
    };
    return true;
}();

__global__ void endless_kernel(int* x) {
    wait_for_earlier_kernels();
    while (atomicAdd(x, 0) == 0) {}
}

__global__ void stray_kernel(int* x) {
    wait_for_earlier_kernels();
    x[threadIdx.x] = 1;
}

}  // namespace

TEST_CASE("support/planted: a kernel that never ends", "[.]") {
    REQUIRE(kAsksGpu);
    Stream stream;
    Buffer<int> x(1);
    zero(x.data(), 1, stream);
    launch<endless_kernel>({1, 32}, stream, x.data());
    stream.synchronize();
}

TEST_CASE("support/planted: a kernel that writes to an invalid address", "[.]") {
    Stream stream;
    launch<stray_kernel>({1, 32}, stream, reinterpret_cast<int*>(uintptr_t{64}));
    stream.synchronize();
}
