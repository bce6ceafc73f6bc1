// Cooperative launches: all blocks run at the same time, and may wait for each other.
#include "gpusim/test/ptx_kernel.h"
#include "gpusim/test/registered_program.h"
#include "test/support/catch.h"

extern "C" cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                                   size_t dynamic_shared, cudaStream_t stream);

using namespace teon::test;

namespace {

// Waits until all blocks have come: the last one sets the barrier's highest bit, in the manner of cooperative_groups.
const std::string kGridBarrier = R"(
    mov.u32 %r10, %envreg2; mov.u32 %r11, %envreg1; cvt.u64.u32 %d5, %r10; cvt.u64.u32 %d6, %r11;
    bfi.b64 %d7, %d6, %d5, 32, 32;
    setp.ne.s64 %p1, %d7, 0;
    @!%p1 trap;
    barrier.sync 0;
    setp.ne.u32 %p2, %r0, 0;
    @%p2 bra PASSED;
    mov.u32 %r12, %nctaid.x; mov.u32 %r13, %ctaid.x; setp.eq.u32 %p3, %r13, 0;
    sub.s32 %r14, -2147483647, %r12; selp.b32 %r15, %r14, 1, %p3;
    atom.add.release.gpu.u32 %r16, [%d7+4], %r15;
    AGAIN:
    ld.acquire.gpu.u32 %r17, [%d7+4];
    xor.b32 %r18, %r17, %r16; setp.gt.s32 %p4, %r18, -1;
    @%p4 bra AGAIN;
    PASSED:
    barrier.sync 0;
)";
// Each block stores its number, and after the barrier reads that of the block in the opposite place.
const std::string kExchange = R"(
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d18, %d2;
    st.global.u32 [%d2], %r1;)" +
                              kGridBarrier + R"(
    sub.s32 %r3, %r2, %r1; sub.s32 %r3, %r3, 1; mul.wide.u32 %d3, %r3, 4; add.s64 %d3, %d18, %d3;
    ld.global.u32 %r4, [%d3];
    mul.wide.u32 %d4, %r2, 4; add.s64 %d2, %d2, %d4;
    st.global.u32 [%d2], %r4;)";

}  // namespace

TEST_CASE("gpusim/cooperative: blocks wait for each other in every order") {
    constexpr uint32_t kBlocks = 9;
    for (const char* order : {"forward", "reverse", "random:1", "random:2"}) {
        INFO(order);
        alignas(16) uint32_t barrier[16] = {};
        Launch launch;
        launch.grid.x = kBlocks;
        launch.block.x = 64;
        launch.order = parse_order(order);
        launch.cooperative = reinterpret_cast<uintptr_t>(barrier);
        const auto out = PtxKernel(kExchange, "")
                             .run_with(std::vector<uint32_t>(2 * kBlocks, 99), launch,
                                       {launch.cooperative, launch.cooperative + sizeof barrier});
        for (uint32_t b = 0; b < kBlocks; ++b) REQUIRE(out[kBlocks + b] == kBlocks - 1 - b);
    }
}

TEST_CASE("gpusim/cooperative: a barrier of the grid in another launch stops the kernel") {
    Launch launch;
    launch.grid.x = 2;
    REQUIRE(contains(PtxKernel(kExchange).error(64, launch), "the kernel stops itself"));
}

TEST_CASE("gpusim/cooperative: a block that never comes is an error") {
    alignas(16) uint32_t barrier[16] = {};
    Launch launch;
    launch.grid.x = 2;
    launch.block.x = 32;
    launch.cooperative = reinterpret_cast<uintptr_t>(barrier);
    std::string error;
    try {
        PtxKernel("mov.u32 %r1, %ctaid.x; setp.eq.u32 %p8, %r1, 1; @%p8 exit;" + kGridBarrier)
            .run_with(std::vector<uint32_t>(32), launch, {launch.cooperative, launch.cooperative + sizeof barrier});
    } catch (const std::exception& e) { error = e.what(); }
    REQUIRE(contains(error, "waits for ever: it has branched back"));
}

TEST_CASE("gpusim/cooperative: a grid that the device cannot hold is refused") {
    RegisteredProgram program(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry kernel() { ret; }");
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    const auto launch = [&](uint32_t blocks) {
        return static_cast<int>(
            cudaLaunchCooperativeKernel(program.function(), dim3(blocks), dim3(1024), nullptr, 0, stream));
    };
    REQUIRE(launch(16) == 0);
    REQUIRE(launch(100000) == 720);  // cudaErrorCooperativeLaunchTooLarge
    cudaGetLastError();
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}
