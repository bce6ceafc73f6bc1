// Tests that names declared between braces belong to their braces, as in code that many projects write as inline PTX,
// and that messages name the line of the kernel into which a function was inlined.
#include "gpusim/test/ptx_kernel.h"
#include "test/support/catch.h"

using namespace teon::test;

namespace {

// Counts to `limit` in %r5, with a label and a predicate of its own.
std::string count_to(int limit) {
    return fmt::format(
        "{{ .reg .pred done; .reg .u32 step; mov.u32 %r5, 0; mov.u32 step, 1;"
        "again: add.u32 %r5, %r5, step; setp.ge.u32 done, %r5, {}; @!done bra again; }}",
        limit);
}

uint32_t result(const std::string& body, const std::string& declarations = "") {
    return PtxKernel(body, declarations).run({7})[0];
}

}  // namespace

TEST_CASE("gpusim/scopes: each scope has its own labels") {
    const std::string body =
        count_to(3) + "mov.u32 %r6, %r5;" + count_to(50) + "mad.lo.u32 %r7, %r6, 1000, %r5; st.global.u32 [%d0], %r7;";
    REQUIRE(result(body) == 3050);
}

TEST_CASE("gpusim/scopes: each scope has its own registers, of its own types") {
    REQUIRE(result("{ .reg .u64 x; mov.u64 x, 0x100000005; shr.u64 x, x, 32; cvt.u32.u64 %r5, x; }"
                   "{ .reg .u16 x; mov.u16 x, 9; cvt.u32.u16 %r6, x; }"
                   "mad.lo.u32 %r7, %r5, 10, %r6; st.global.u32 [%d0], %r7;") == 19);
    REQUIRE(result("{ .reg .u32 x; mov.u32 x, 4;"
                   "{ .reg .u32 x; mov.u32 x, 8; mov.u32 %r5, x; }"
                   "{ add.u32 x, x, 1; }"
                   "mad.lo.u32 %r5, %r5, 10, x; } st.global.u32 [%d0], %r5;") == 85);
    REQUIRE(result("mov.u32 %r5, 1; { .reg .u32 %r<9>; mov.u32 %r5, 2; } st.global.u32 [%d0], %r5;") == 1);
}

TEST_CASE("gpusim/scopes: a branch leaves its scope") {
    REQUIRE(result("mov.u32 %r5, 1; { { bra out; } out: mov.u32 %r6, 6; } mov.u32 %r5, %r6; bra done;"
                   "out: mov.u32 %r5, 3; done: st.global.u32 [%d0], %r5;") == 6);
    REQUIRE_THROWS_WITH(PtxKernel("{ inner: mov.u32 %r5, 1; } bra inner;"),
                        ContainsSubstring("the label is not known"));
    REQUIRE_THROWS_WITH(PtxKernel("{ .reg .u32 x; } mov.u32 x, 1;"), ContainsSubstring("'x' is no variable"));
}

// nvcc gives the parameters of every call these names.
TEST_CASE("gpusim/scopes: each call has its own parameters") {
    const std::string functions = R"(
        .func (.param .b64 result) widen(.param .b64 a, .param .b64 b) {
            .reg .b64 %x<4>;
            ld.param.b64 %x1, [a]; ld.param.b64 %x2, [b]; add.s64 %x3, %x1, %x2; st.param.b64 [result], %x3; ret;
        }
        .func (.param .b32 result) narrow(.param .b32 a, .param .b32 b, .param .b32 c) {
            .reg .b32 %x<6>;
            ld.param.b32 %x1, [a]; ld.param.b32 %x2, [b]; ld.param.b32 %x3, [c];
            mad.lo.s32 %x4, %x1, %x2, %x3; st.param.b32 [result], %x4; ret;
        })";
    const std::string wide =
        "{ .param .b64 param0; .param .b64 param1; .param .b64 retval0; st.param.b64 [param0], %d5;"
        "st.param.b64 [param1], %d6; call.uni (retval0), widen, (param0, param1); ld.param.b64 %d5, [retval0]; }";
    const std::string slim =
        "{ .param .b32 param0; .param .b32 param1; .param .b32 param2; .param .b32 retval0; st.param.b32 [param0], 4;"
        "st.param.b32 [param1], 5; st.param.b32 [param2], 6; call.uni (retval0), narrow, (param0, param1, param2);"
        "ld.param.b32 %r5, [retval0]; }";
    REQUIRE(result("mov.u64 %d5, 0x100000001; mov.u64 %d6, 0x200000002;" + wide + slim + wide +
                       "shr.u64 %d7, %d5, 32; cvt.u32.u64 %r6, %d5; cvt.u32.u64 %r7, %d7;"
                       "mad.lo.u32 %r8, %r5, 100, %r6; mad.lo.u32 %r8, %r7, 10000, %r8; st.global.u32 [%d0], %r8;",
                   functions) == 5 * 10000 + 26 * 100 + 5);
}

TEST_CASE("gpusim/scopes: a message names the line of the kernel that an inlined function came from") {
    const std::string wrong = "mov.u64 %d5, 0; ld.global.u32 %r1, [%d5];";
    const std::string files = ".file 2 \"/elsewhere/wrapper.h\"\n.file 3 \"/elsewhere/outer.h\"\n";
    REQUIRE_THAT(PtxKernel("\n.loc 1 20 3\n mov.u32 %r2, 0;"
                           "\n.loc 3 12 5, function_name $L__info_string0, inlined_at 1 20 3\n mov.u32 %r1, 0;"
                           "\n.loc 2 99 7, function_name $L__info_string1, inlined_at 3 12 5\n" +
                               wrong,
                           files)
                     .error(1),
                 ContainsSubstring("wrapper.h:99 (inlined at test.cu:20): ld.global.u32"));
    REQUIRE_THAT(PtxKernel("\n.loc 1 20 3\n" + wrong, files).error(1),
                 ContainsSubstring(": test.cu:20: ld.global.u32"));
}
