// Shared memory that threads access byte by byte, although the model keeps its stamps for two bytes at a time.
#include "gpusim/test/ptx_kernel.h"
#include "test/support/catch.h"

using namespace teon::test;

namespace {

const std::string kShared = ".shared .align 16 .b8 buffer[256];";
// Clears the buffer, and sets %r1 to the address of the thread's own byte.
const std::string kBegin =
    "mov.u32 %r2, buffer; shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r2; mov.u32 %r4, 0; st.shared.u32 [%r3], %r4;"
    "bar.sync 0; add.u32 %r1, %r2, %r0;";
// Adds 1 to the byte.
const std::string kCount = "ld.shared.u8 %r5, [%r1]; add.u32 %r5, %r5, 1; st.shared.u8 [%r1], %r5;";

}  // namespace

TEST_CASE("gpusim/bytes: threads may count in neighbouring bytes without a barrier") {
    REQUIRE(PtxKernel(kBegin + kCount + kCount + kCount, kShared).error(64).empty());
}

TEST_CASE("gpusim/bytes: a byte that another thread has written is a race until a barrier") {
    const std::string other = "xor.b32 %r1, %r1, 1; ";
    REQUIRE(contains(PtxKernel(kBegin + kCount + other + kCount, kShared).error(64), "a race"));
    REQUIRE(PtxKernel(kBegin + kCount + "bar.sync 0;" + other + kCount, kShared).error(64).empty());
    // A write of both bytes comes after that of one.
    const std::string both = "and.b32 %r6, %r1, -4; mov.u32 %r7, 7; ";
    REQUIRE(contains(PtxKernel(kBegin + kCount + "bar.sync 0; setp.eq.u32 %p1, %r0, 0;" + both +
                                   "@%p1 st.shared.u32 [%r6], %r7; ld.shared.u8 %r8, [%r1];",
                               kShared)
                         .error(64),
                     "a race"));
}
