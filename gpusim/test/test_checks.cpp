// Tests that each check of the modelled GPU finds its fault and names the place, and passes a correct kernel.
#include "cpu/error.h"
#include "gpusim/limits.h"
#include "gpusim/test/kernel_cases.h"

using namespace teon::test;

namespace {

const std::string kShared = ".shared .align 16 .b8 buffer[4096];";
// %r2: the address of the thread's own element in shared memory.
const std::string kOwn = "mov.u32 %r1, buffer; shl.b32 %r2, %r0, 2; add.u32 %r2, %r1, %r2;";
// Writes each element once before, so that a read that is too early is a race in every order, not uninitialized.
const std::string kStore = kOwn + "st.shared.u32 [%r2], 1; bar.sync 0; st.shared.u32 [%r2], %r0;";
// Load the element of a neighbour: of lane ^ 1, and of the other warp of a pair.
const std::string kLoadLane = "xor.b32 %r3, %r2, 4; ld.shared.u32 %r4, [%r3];";
const std::string kLoadWarp = "xor.b32 %r3, %r2, 128; ld.shared.u32 %r4, [%r3];";

void check(const std::vector<KernelCase>& cases) {
    check_cases(cases, {"test.cu:8", "kernel kernel", "block (0, 0, 0), warp "},
                [](const KernelCase& c, const std::string& order) {
                    Launch launch;
                    launch.order = parse_order(order);
                    launch.block.x = c.threads ? c.threads : 32;
                    PtxKernel(c.body, kShared).run(std::vector<uint32_t>(launch.block.x, 1), launch);
                });
}

}  // namespace

TEST_CASE("gpusim/checks: bounds and alignment") {
    check(
        {{"global", "ld.global.u32 %r1, [%d1+128];", "of an allocation of 128 bytes"},
         {"global, within", "ld.global.u32 %r1, [%d1];", ""},
         {"null", "mov.u64 %d5, 0; ld.global.u32 %r1, [%d5];", "in no allocation"},
         {"before null", "mov.u64 %d5, 0; ld.global.u32 %r1, [%d5+-4];", "4 bytes at 0xfffffffffffffffc"},
         {"before null, one lane of several",
          "setp.eq.u32 %p1, %r0, 5; selp.b64 %d5, -4, %d1, %p1; ld.global.u32 %r1, [%d5];",
          "4 bytes at 0xfffffffffffffffc"},
         {"alignment", "ld.global.u64 %d5, [%d1];", "not a multiple of 8 bytes"},
         {"shared", kOwn + "st.shared.u32 [%r1+4096], 0;", "of shared memory, of which the block has 4096"},
         {"shared alignment", kOwn + "st.shared.u32 [%r2+2], 0;", "not a multiple of 4 bytes"},
         {"generic", "cvta.global.u64 %d5, %d1; ld.u32 %r1, [%d5];", ""},
         {"generic shared", "mov.u64 %d5, buffer; cvta.shared.u64 %d6, %d5; st.u32 [%d6+4096], 0;", "of shared memory"},
         {"local", ".local .b8 mine[8]; mov.u64 %d5, mine; st.local.u32 [%d5+8], 0;", "of local memory"}});
}

TEST_CASE("gpusim/checks: shared memory that nothing has written") {
    check({{"never", kOwn + "ld.shared.u32 %r4, [%r2];", "which nothing has written"},
           {"half", kOwn + "st.shared.u16 [%r2], 0; ld.shared.u32 %r4, [%r2];", "which nothing has written"},
           {"written", kStore + "ld.shared.u32 %r4, [%r2];", ""}});
}

TEST_CASE("gpusim/checks: races between warps") {
    check({{"read", kStore + kLoadWarp, "a race", 64},
           {"barrier", kStore + "bar.sync 0;" + kLoadWarp, "", 64},
           {"write after read", kStore + "bar.sync 0;" + kLoadWarp + "st.shared.u32 [%r2], %r4;", "a race", 64},
           {"two barriers", kStore + "bar.sync 0;" + kLoadWarp + "bar.sync 0; st.shared.u32 [%r2], %r4;", "", 64},
           {"two write", kOwn + "st.shared.u32 [%r1], %r0;", "a race", 64},
           {"two write the same", kOwn + "st.shared.u32 [%r1], 5;", "", 64},
           {"atomics",
            kOwn + "setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [%r1], 0; bar.sync 0;"
                   "atom.shared.add.u32 %r4, [%r1], 1;",
            "", 64}});
}

TEST_CASE("gpusim/checks: races within a warp") {
    check({{"no sync", kStore + kLoadLane, "a race"},
           {"sync", kStore + "bar.warp.sync -1;" + kLoadLane, ""},
           {"shuffles order nothing", kStore + "shfl.sync.idx.b32 %r5, %r0, 0, 31, -1;" + kLoadLane, "a race"},
           {"write after read", kStore + "bar.warp.sync -1;" + kLoadLane + "st.shared.u32 [%r2], %r4;", "a race"},
           {"many times",
            kStore + "mov.u32 %r10, 0; $more: bar.warp.sync -1;" + kLoadLane +
                "bar.warp.sync -1; st.shared.u32 [%r2], %r4; add.u32 %r10, %r10, 1;"
                "setp.lt.u32 %p1, %r10, 600; @%p1 bra $more;",
            ""},
           {"a sync of all lanes, then many of halves",
            kOwn + "st.shared.u32 [%r2], 1; setp.lt.u32 %p1, %r0, 16; selp.b32 %r5, 0xffff, 0xffff0000, %p1;"
                   "bar.warp.sync -1; mov.u32 %r10, 0; $more: st.shared.u32 [%r2+2048], %r10; bar.warp.sync %r5;"
                   "add.u32 %r10, %r10, 1; setp.lt.u32 %p2, %r10, 600; @%p2 bra $more;"
                   "xor.b32 %r3, %r2, 64; ld.shared.u32 %r4, [%r3];",
            ""},
           {"halves",
            kStore + "setp.lt.u32 %p1, %r0, 16; selp.b32 %r5, 0xffff, 0xffff0000, %p1; bar.warp.sync %r5;" + kLoadLane,
            ""},
           {"the other half",
            kStore + "setp.lt.u32 %p1, %r0, 16; selp.b32 %r5, 0xffff, 0xffff0000, %p1;"
                     "bar.warp.sync %r5; xor.b32 %r3, %r2, 64; ld.shared.u32 %r4, [%r3];",
            "a race"}});
}

TEST_CASE("gpusim/checks: asynchronous copies") {
    const std::string copy = kStore + "bar.sync 0; cp.async.ca.shared.global [%r2], [%d1], 4; cp.async.commit_group;";
    check({{"not waited for", copy + "ld.shared.u32 %r4, [%r2];", "which cp.async still writes"},
           {"waited for", copy + "cp.async.wait_group 0; ld.shared.u32 %r4, [%r2];", ""},
           {"waited for the group before", copy + "cp.async.wait_group 1; ld.shared.u32 %r4, [%r2];",
            "which cp.async still writes"},
           {"others' needs a barrier", copy + "cp.async.wait_group 0;" + kLoadWarp, "a race", 64},
           {"with one", copy + "cp.async.wait_group 0; bar.sync 0;" + kLoadWarp, "", 64},
           {"source", kOwn + "cp.async.ca.shared.global [%r2], [%d1+128], 4;", "of an allocation of 128 bytes"},
           {"zeros need no source", kOwn + "mov.u64 %d5, 0; cp.async.ca.shared.global [%r2], [%d5], 4, 0;", ""}});
}

TEST_CASE("gpusim/checks: masks, collectives and barriers that miss lanes") {
    const std::string odd = "and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 1;";
    check({{"a missing lane", odd + "@%p1 bra $end; shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1; $end:",
            "lane 1, which is not in the mask or"},
           {"lanes of the mask that have returned, and are not read",
            odd + "@%p1 bra $end; shfl.sync.bfly.b32 %r2, %r0, 2, 31, -1; bar.warp.sync -1;"
                  "vote.sync.all.pred %p2, %p1, -1; $end:",
            ""},
           {"lanes that the block does not have", "shfl.sync.up.b32 %r2, %r0, 1, 0, -1;", "", 40},
           {"lanes that return later", odd + "bar.warp.sync -1; @%p1 bra $end; bar.warp.sync -1; $end:", "", 40},
           {"own mask", odd + "shfl.sync.bfly.b32 %r2, %r0, 2, 31, 0x55555555;", "not in its own mask"},
           {"their mask", odd + "@%p1 bra $end; shfl.sync.bfly.b32 %r2, %r0, 2, 31, 0x55555555; $end:", ""},
           {"reads outside",
            odd + "@%p1 bra $end; shfl.sync.bfly.b32 %r2, %r0, 1, 31, 0x55555555; $end:", "which is not in the mask"},
           {"some wait for lanes that others wait for",
            "setp.lt.u32 %p1, %r0, 8; selp.b32 %r5, 0xff, 0xffffff00, %p1; setp.ge.u32 %p2, %r0, 16; @%p2 bra $b;"
            "$a: bar.warp.sync %r5; @!%p1 bra $end; $b: bar.warp.sync 0xffff00ff; @!%p1 bra $a; $end:",
            ""},
           {"two places", odd + "@%p1 bra $b; bar.sync 0; bra.uni $end; $b: bar.sync 0; $end:", "and never meet"},
           {"part of the block",
            "setp.lt.u32 %p1, %r0, 32; @%p1 bra $b; bar.sync 0; bra.uni $end;"
            "$b: \n.loc 1 8 0\n mov.u32 %r1, 0; \n.loc 1 9 0\n bar.sync 0; $end:\n.loc 1 8 0\n",
            "a barrier that only part of the block reaches", 64},
           {"warps that have returned", "setp.lt.u32 %p1, %r0, 32; @%p1 bra $end; bar.sync 0; $end:", "", 64}});
}

TEST_CASE("gpusim/checks: dynamic shared memory ends with its last byte") {
    const std::string dynamic = ".shared .align 4 .b8 before[4]; .extern .shared .align 16 .b8 buffer[];";
    Launch launch;
    launch.dynamic_shared = 128;
    REQUIRE(PtxKernel("mov.u32 %r9, before;" + kOwn + "st.shared.u32 [%r2], 0;", dynamic).error(32, launch) == "");
    REQUIRE(PtxKernel("st.shared.u32 [buffer+124], 0; mov.u32 %r1, buffer+124; ld.shared.u32 %r2, [%r1];", dynamic)
                .error(1, launch) == "");
    REQUIRE_THAT(PtxKernel("st.shared.u32 [buffer+128], 0;", dynamic).error(1, launch),
                 ContainsSubstring("4 bytes at byte 128 of shared memory, of which the block has 128"));
    REQUIRE_THAT(PtxKernel("mov.u32 %r9, before;" + kOwn + "st.shared.u32 [%r2+4], 0;", dynamic).error(32, launch),
                 ContainsSubstring("4 bytes at byte 144 of shared memory, of which the block has 144"));
}

TEST_CASE("gpusim/checks: launches that a device does not take") {
    const teon::GpuSheet& device = teon::kA100;
    const std::string arrays = ".shared .align 4 .b8 fixed[1000]; .extern .shared .align 1024 .b8 buffer[];";
    const PtxKernel small("", kShared);
    const PtxKernel both("mov.u32 %r9, fixed;" + kOwn, arrays);
    const PtxKernel large("mov.u32 %r9, fixed;", ".shared .align 4 .b8 fixed[65536];");
    const size_t unasked = unasked_dynamic_shared(both.program());
    const size_t limit = most_dynamic_shared(both.program(), device);
    REQUIRE(unasked == 47 * 1024);
    REQUIRE(limit == 162 * 1024);
    struct Case {
        const PtxKernel& kernel;
        Extent3 grid, block;
        size_t dynamic, granted;
        const char* expected;  // "": accepted
    };
    for (const Case& c : {Case{small, {1, 65535, 65535}, {1024, 1, 1}, 0, 0, ""},
                          {small, {1, 65536, 1}, {1, 1, 1}, 0, 0, "a grid of 1 x 65536 x 1 blocks"},
                          {small, {1, 1, 65536}, {1, 1, 1}, 0, 0, "at most 65535 along y and z"},
                          {small, {0x80000000, 1, 1}, {1, 1, 1}, 0, 0, "a grid of"},
                          {small, {1, 0, 1}, {1, 1, 1}, 0, 0, "a grid of 1 x 0 x 1 blocks"},
                          {small, {1, 1, 1}, {33, 32, 1}, 0, 0, "a block of 33 x 32 x 1 threads"},
                          {small, {1, 1, 1}, {1, 1, 65}, 0, 0, "a block of 1 x 1 x 65 threads"},
                          {both, {1, 1, 1}, {32, 1, 1}, unasked, unasked, ""},
                          {both, {1, 1, 1}, {32, 1, 1}, unasked + 1, unasked, "were granted"},
                          {both, {1, 1, 1}, {32, 1, 1}, limit, limit, ""},
                          {both, {1, 1, 1}, {32, 1, 1}, limit + 1, limit + 1, "beside 1000 static ones"},
                          {large, {1, 1, 1}, {32, 1, 1}, 0, 0, "65536 bytes of static shared memory"}}) {
        Launch launch;
        launch.grid = c.grid;
        launch.block = c.block;
        launch.dynamic_shared = c.dynamic;
        const cudaError_t status = check_launch(c.kernel.program(), device, c.granted, launch);
        const std::string words = status == cudaSuccess ? "" : cudaGetErrorString(cudaGetLastError());
        if (*c.expected) {
            REQUIRE_THAT(words, ContainsSubstring(c.expected));
        } else {
            REQUIRE(words == "");
        }
    }
}

// Both blocks read before either writes. An order that runs one block after the other cannot show this.
TEST_CASE("gpusim/checks: blocks run by turns in random orders") {
    const PtxKernel k(R"(
        ld.global.u32 %r1, [%d18]; add.u32 %r2, %r1, 1;
        mov.u32 %r3, 0;
    $wait:
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p1, %r3, 100;
        @%p1 bra $wait;
        st.global.u32 [%d18], %r2;)");
    const auto count = [&](const char* order) {
        Launch launch;
        launch.grid.x = 2;
        launch.order = parse_order(order);
        return k.run({0}, launch)[0];
    };
    bool both = false;
    for (int seed = 0; seed < 8 && !both; ++seed) both = count(fmt::format("random:{}", seed).c_str()) == 1;
    REQUIRE(both);
}

TEST_CASE("gpusim/checks: device memory before griddepcontrol.wait") {
    const PtxKernel hasty("ld.global.u32 %r1, [%d1]; griddepcontrol.wait;");
    const PtxKernel patient("griddepcontrol.wait; ld.global.u32 %r1, [%d1];");
    Launch launch;
    REQUIRE(hasty.error(32, launch) == "");
    launch.early = true;
    REQUIRE_THAT(hasty.error(32, launch), ContainsSubstring("before griddepcontrol.wait"));
    REQUIRE(patient.error(32, launch) == "");
}
