// Counts of instructions and of memory accesses, compared with those that follow from the kernel's text.
#include "base/check.h"
#include "gpusim/opcodes.h"
#include "gpusim/test/ptx_kernel.h"
#include "test/support/catch.h"

namespace teon::test {

namespace {

// Returns the count of the first instruction with this opcode, for a launch of `blocks` blocks of `threads` threads.
Count count_of(const PtxKernel& kernel, const std::string& opcode, uint32_t threads, uint32_t blocks = 1) {
    Launch launch;
    launch.block.x = threads;
    launch.grid.x = blocks;
    KernelCounts counts;
    kernel.run(std::vector<uint32_t>(32 * threads), launch, &counts);
    const std::vector<Instruction>& code = kernel.program().code;
    for (size_t k = 0; k < code.size(); ++k)
        if (opcode_name(code[k].opcode) == opcode) return counts.code[k];
    throw Error("no " + opcode);
}

}  // namespace

TEST_CASE("gpusim/counts: executions of a loop, by warps and by lanes") {
    // Thread t runs the loop t % 4 + 1 times.
    const PtxKernel kernel(R"(
        and.b32 %r1, %r0, 3;
    loop:
        sub.u32 %r1, %r1, 1;
        setp.ne.u32 %p0, %r1, -1;
        @%p0 bra loop;
    )");
    const Count count = count_of(kernel, "sub.u32", 48, 2);
    REQUIRE(count.warps == 2 * 2 * 4);
    REQUIRE(count.lanes == 2 * 48 * 10 / 4);
}

TEST_CASE("gpusim/counts: sectors of device memory") {
    const auto load = [](int stride, const std::string& type, const std::string& to) {
        return count_of(
            PtxKernel("mul.lo.u32 %r2, %r0, " + std::to_string(stride) +
                      "; cvt.u64.u32 %d2, %r2; add.s64 %d2, %d2, %d19; ld.global." + type + " " + to + ", [%d2];"),
            "ld.global." + type, 32);
    };
    struct Case {
        int stride;
        const char *type, *to;
        uint64_t sectors, at_least;
    };
    // The test's memory begins at a multiple of 16 bytes, so an access may touch one more sector of 32 bytes.
    for (const Case& c : {Case{4, "u32", "%r3", 4, 4},
                          {8, "u32", "%r3", 8, 4},
                          {32, "u32", "%r3", 32, 4},
                          {0, "u32", "%r3", 1, 1},
                          {16, "v4.u32", "{%r3, %r4, %r5, %r6}", 16, 16}}) {
        INFO(c.stride << " " << c.type);
        const Count count = load(c.stride, c.type, c.to);
        REQUIRE(count.warps == 1);
        REQUIRE(count.transactions >= c.sectors);
        REQUIRE(count.transactions <= c.sectors + 1);
        REQUIRE(count.at_least == c.at_least);
    }
}

TEST_CASE("gpusim/counts: wavefronts of shared memory") {
    const auto store = [](int stride, const std::string& type, const std::string& from) {
        return count_of(
            PtxKernel("mul.lo.u32 %r2, %r0, " + std::to_string(stride) +
                          "; mov.u32 %r3, tile; add.u32 %r3, %r3, %r2; st.shared." + type + " [%r3], " + from + ";",
                      ".shared .align 16 .b8 tile[8192];"),
            "st.shared." + type, 32);
    };
    REQUIRE(store(4, "u32", "%r2").transactions == 1);
    REQUIRE(store(8, "u32", "%r2").transactions == 2);     // every second bank
    REQUIRE(store(128, "u32", "%r2").transactions == 32);  // one bank
    REQUIRE(store(132, "u32", "%r2").transactions == 1);   // rows of 33 words
    REQUIRE(store(16, "v4.u32", "{%r2, %r2, %r2, %r2}").transactions == 4);
    REQUIRE(store(128, "u32", "%r2").at_least == 1);
}

}  // namespace teon::test
