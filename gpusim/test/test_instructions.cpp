#include <bit>
#include <cmath>
#include <numeric>

#include "gpusim/test/ptx_kernel.h"
#include "test/support/catch.h"

using namespace teon::test;

namespace {

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

std::vector<uint32_t> count(size_t n) {
    std::vector<uint32_t> v(n);
    std::iota(v.begin(), v.end(), 0u);
    return v;
}

}  // namespace

TEST_CASE("gpusim/instructions: one lane's results are those that the manual states") {
    struct Case {
        const char* instructions;
        uint32_t operand, expected;
    };
    const Case cases[] = {
        {"add.s32 %r9, %r1, -3;", 1, 0xfffffffe},
        {"mul.hi.u32 %r9, %r1, %r1;", 0x80000000, 0x40000000},
        {"mad.lo.s32 %r9, %r1, 3, 1;", 5, 16},
        {"div.s32 %r9, %r1, 3;", static_cast<uint32_t>(-7), static_cast<uint32_t>(-2)},
        {"div.u32 %r9, %r1, 0;", 7, 0xffffffff},
        {"rem.s32 %r9, %r1, -1;", 0x80000000, 0},
        {"shr.s32 %r9, %r1, 40;", 0x80000000, 0xffffffff},
        {"shl.b32 %r9, %r1, 32;", 1, 0},
        {"bfe.s32 %r9, %r1, 4, 4;", 0xf0, 0xffffffff},
        {"bfi.b32 %r9, 5, %r1, 8, 4;", 0xffff, 0xf5ff},
        {"prmt.b32 %r9, %r1, 0, 0x0123;", 0x11223344, 0x44332211},
        {"shf.l.wrap.b32 %r9, %r1, %r1, 8;", 0x12345678, 0x34567812},
        {"popc.b32 %r9, %r1;", 0xf0f0, 8},
        {"clz.b32 %r9, %r1;", 0, 32},
        {"bfind.u32 %r9, %r1;", 0, 0xffffffff},
        {"bfind.s32 %r9, %r1;", static_cast<uint32_t>(-9), 3},
        {"bfind.shiftamt.u32 %r9, %r1;", 0x10, 27},
        {"setp.lo.u32 %p1, %r1, 5; selp.b32 %r9, 1, 2, %p1;", 4, 1},
        {"setp.lt.f32 %p1, %f1, 0f3F800000; selp.b32 %r9, 1, 2, %p1;", 0x7fc00000, 2},
        {"setp.geu.f32 %p1, %f1, 0f3F800000; selp.b32 %r9, 1, 2, %p1;", 0x7fc00000, 1},
        {"max.f32 %f9, %f1, 0f3F800000; mov.b32 %r9, %f9;", 0x7fc00000, 0x3f800000},
        {"max.NaN.f32 %f9, %f1, 0f3F800000; mov.b32 %r9, %f9;", 0x7fc00000, 0x7fffffff},
        {"min.f32 %f9, %f1, 0f80000000; mov.b32 %r9, %f9;", 0, 0x80000000},
        {"mul.ftz.f32 %f9, %f1, 0f3F800000; mov.b32 %r9, %f9;", 0x00000001, 0},
        {"fma.rn.f32 %f9, %f1, %f1, 0fBF800000; mov.b32 %r9, %f9;", 0x3f800800, 0x3a000400},
        {"cvt.rzi.s32.f32 %r9, %f1;", 0xff800000, 0x80000000},
        {"cvt.rni.s32.f32 %r9, %f1;", 0x40200000, 2},  // 2.5
        {"cvt.rzi.u32.f32 %r9, %f1;", 0x7fc00000, 0},
        {"cvt.s32.s8 %r9, %h1;", 0x80, 0xffffff80},
        {"cvt.rn.bf16.f32 %h2, %f1; cvt.u32.u16 %r9, %h2;", 0x7fc00001, 0x7fff},
        {"cvt.rn.bf16.f32 %h2, %f1; cvt.u32.u16 %r9, %h2;", 0x3f808000, 0x3f80},  // a tie, to even
        {"cvt.rz.bf16.f32 %h2, %f1; cvt.u32.u16 %r9, %h2;", 0xbf81ffff, 0xbf81},
        {"cvt.rn.f16.f32 %h2, %f1; cvt.u32.u16 %r9, %h2;", 0x7fc00000, 0x7fff},
        {"cvt.rn.bf16x2.f32 %r9, %f1, 0f40000000;", 0x3f800000, 0x3f804000},
        {"mov.b32 {%h2, %h3}, %r1; mov.b32 %r9, {%h3, %h2};", 0x12345678, 0x56781234},
        {"ex2.approx.ftz.f32 %f9, %f1; mov.b32 %r9, %f9;", 0x40400000, 0x41000000},
        {"mov.pred %p1, -1; xor.pred %p2, %p1, %p1; or.pred %p3, %p1, %p2; selp.b32 %r9, 1, 2, %p3;", 0, 1},
        {"st.shared.u32 [buffer], %r1; ld.shared.u8 %r9, [buffer+1];", 0x1234, 0x12},
    };
    for (const Case& c : cases) {
        INFO(c.instructions);
        const PtxKernel k("ld.global.u32 %r1, [%d1]; mov.b32 %f1, %r1; cvt.u16.u32 %h1, %r1;" +
                              std::string(c.instructions) + "st.global.u32 [%d0], %r9;",
                          ".shared .align 4 .b8 buffer[8];");
        REQUIRE(k.run({c.operand})[0] == c.expected);
    }
}

TEST_CASE("gpusim/instructions: lanes that leave a loop at different times meet again behind it") {
    const PtxKernel k(R"(
        mov.u32 %r1, 0;
        mov.u32 %r2, 0;
    $loop:
        setp.ge.u32 %p1, %r1, %r0;
        @%p1 bra $done;
        add.u32 %r2, %r2, %r1;
        add.u32 %r1, %r1, 1;
        bra.uni $loop;
    $done:
        vote.sync.ballot.b32 %r3, %p1, -1;
        mul.lo.u32 %r3, %r3, 1000;
        add.u32 %r2, %r2, %r3;
        st.global.u32 [%d0], %r2;)");
    std::vector<uint32_t> expected;
    for (uint32_t t = 0; t < 64; ++t) expected.push_back(t * (t - 1) / 2 - 1000);
    for (const char* order : {"forward", "reverse", "random:1", "random:2"}) {
        INFO(order);
        Launch launch;
        launch.block.x = 64;
        launch.order = parse_order(order);
        REQUIRE(k.run(count(64), launch) == expected);
    }
}

TEST_CASE("gpusim/instructions: shuffles") {
    const auto run = [](const std::string& shuffle) {
        return PtxKernel("ld.global.u32 %r1, [%d1]; mov.u32 %r9, 99;" + shuffle + "st.global.u32 [%d0], %r9;")
            .run(count(32));
    };
    const auto bfly = run("shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1;");
    const auto up = run("shfl.sync.up.b32 %r9|%p1, %r1, 2, 0, -1;");
    const auto down = run("shfl.sync.down.b32 %r9, %r1, 1, 0x1807, -1;");
    const auto  // within segments of 8
        idx = run("shfl.sync.idx.b32 %r9, %r1, 5, 31, -1;");
    for (uint32_t l = 0; l < 32; ++l) {
        REQUIRE(bfly[l] == (l ^ 1));
        REQUIRE(up[l] == (l < 2 ? l : l - 2));
        REQUIRE(down[l] == (l % 8 == 7 ? l : l + 1));
        REQUIRE(idx[l] == 5);
    }
}

TEST_CASE("gpusim/instructions: blocks, barriers and shared memory turn a grid's elements around") {
    const PtxKernel k(R"(
        mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;
        mul.wide.u32 %d2, %r3, 4;
        add.s64 %d3, %d19, %d2; ld.global.u32 %r4, [%d3];
        shl.b32 %r5, %r0, 2; mov.u32 %r6, array; add.u32 %r7, %r6, %r5; st.shared.u32 [%r7], %r4;
        bar.sync 0;
        sub.u32 %r8, %r2, 1; sub.u32 %r8, %r8, %r0; shl.b32 %r8, %r8, 2; add.u32 %r8, %r8, %r6;
        ld.shared.u32 %r9, [%r8];
        add.s64 %d4, %d18, %d2; st.global.u32 [%d4], %r9;)",
                      ".extern .shared .align 1024 .b8 array[];");
    Launch launch;
    launch.grid.x = 3;
    launch.block.x = 96;
    launch.dynamic_shared = 4 * 96;
    for (const char* order : {"forward", "reverse", "random:7"}) {
        launch.order = parse_order(order);
        const auto out = k.run(count(288), launch);
        for (uint32_t i = 0; i < 288; ++i) REQUIRE(out[i] == i / 96 * 96 + 95 - i % 96);
    }
}

// With the identity as A, the product is B. The fragments are those of the manual's figures.
TEST_CASE("gpusim/instructions: mma") {
    const PtxKernel k(R"(
        shr.u32 %r1, %r0, 2; and.b32 %r2, %r0, 3;               // row or column of the fragment, its pair
        shl.b32 %r3, %r2, 1; sub.u32 %r4, %r1, %r3;             // 0 or 1: the diagonal is in this pair
        setp.eq.u32 %p1, %r4, 0; selp.b32 %r5, 0x3f80, 0, %p1;
        setp.eq.u32 %p2, %r4, 1; selp.b32 %r6, 0x3f800000, 0, %p2; or.b32 %r5, %r5, %r6;
        cvt.rn.f32.u32 %f1, %r0; add.f32 %f2, %f1, 0f42800000; cvt.rn.bf16x2.f32 %r7, %f2, %f1; mov.u32 %r8, 0;
        mov.f32 %f4, 0f3F800000;
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f5, %f6, %f7, %f8}, {%r5, %r8, %r8, %r5}, {%r7, %r8},
            {%f4, %f4, %f4, %f4};
        mov.b32 %r9, %f5; st.global.u32 [%d0], %r9;)");
    const auto out = k.run(count(32));
    // Lane l stores D[row][column] = 1 + B[row][column] with row = l / 4, column = 2 (l % 4). Lane 4 column + row / 2
    // holds that element of B.
    for (uint32_t l = 0; l < 32; ++l) {
        const uint32_t row = l / 4;
        const uint32_t column = 2 * (l % 4);
        const uint32_t holder = 4 * column + row / 2;
        REQUIRE(out[l] == bits(1.0f + static_cast<float>(holder + (row % 2 ? 64 : 0))));
    }
}

TEST_CASE("gpusim/instructions: each call is inlined with its own registers") {
    const PtxKernel k(R"(
        ld.global.f32 %f1, [%d1];
        { .param .b32 value; st.param.f32 [value], %f1; .param .b32 result;
          call.uni (result), twice, (value); ld.param.f32 %f2, [result]; }
        { .param .b32 value; st.param.f32 [value], %f2; .param .b32 result;
          call.uni (result), twice, (value); ld.param.f32 %f2, [result]; }
        st.global.f32 [%d0], %f2;)",
                      R"(.func (.param .b32 r) twice(.param .b32 a) {
        .reg .f32 %f<3>; ld.param.f32 %f1, [a]; add.f32 %f2, %f1, %f1; st.param.f32 [r], %f2; ret; })");
    REQUIRE(k.run({bits(1.5f)})[0] == bits(6.0f));
}

TEST_CASE("gpusim/instructions: registers that are not needed at the same time share places") {
    std::string body = "ld.global.u32 %r1, [%d1];";
    for (int k = 2; k < 30; ++k) body += fmt::format("add.u32 %r{}, %r{}, 1;", k, k - 1);
    const PtxKernel k(body + "st.global.u32 [%d0], %r29;");
    REQUIRE(k.run({5})[0] == 33);
    REQUIRE(k.program().register_bytes < 20 * 128);
}

TEST_CASE("gpusim/instructions: an unknown instruction is named with its place") {
    for (const std::string instruction :
         {"tcgen05.fence.sync.aligned;", "atom.global.min.noftz.f16x2 %r1, [%d1], %r1;",
          "red.global.max.noftz.bf16x2 [%d1], %r1;", "atom.global.cas.b16 %h1, [%d1], %h1, %h1;",
          "atom.global.min.noftz.f16 %h1, [%d1], %h1;"}) {
        INFO(instruction);
        const auto build = [&] { PtxKernel k(instruction); };
        const std::string opcode = instruction.substr(0, instruction.find_first_of(" ;"));
        REQUIRE_THROWS_WITH(build(), ContainsSubstring("test.cu:8") && ContainsSubstring("\"" + opcode));
    }
    const auto wide = [] { PtxKernel k(".reg .b128 %q1;"); };
    REQUIRE_THROWS_WITH(wide(), ContainsSubstring("registers of type 'b128' are not modelled"));
    const auto initialized = [] { PtxKernel k("", ".global .align 16 .b128 some = 1;"); };
    REQUIRE_THROWS_WITH(initialized(), ContainsSubstring("initial values of type 'b128' are not modelled (some)"));
}

TEST_CASE("gpusim/instructions: lanes elect, match and reduce") {
    Launch launch;
    launch.block.x = 32;
    for (const char* order : {"forward", "reverse", "random:7"}) {
        INFO(order);
        launch.order = parse_order(order);
        const auto result = [&](const std::string& body) {
            return PtxKernel(body + "st.global.u32 [%d0], %r9;").run(count(32), launch);
        };
        const auto elected = result("elect.sync %r8|%p1, 0xffffffff; selp.b32 %r9, 100, %r8, %p1;");
        REQUIRE(std::count(elected.begin(), elected.end(), 100u) == 1);
        REQUIRE(std::count(elected.begin(), elected.end(), 0u) == 31);
        const auto same = result("and.b32 %r8, %r0, 3; match.any.sync.b32 %r9, %r8, 0xffffffff;");
        for (uint32_t l = 0; l < 32; ++l) REQUIRE(same[l] == 0x11111111u << l % 4);
        REQUIRE(result("shr.u32 %r8, %r0, 5; match.all.sync.b32 %r9|%p1, %r8, 0xffffffff;")[5] == 0xffffffff);
        REQUIRE(result("match.all.sync.b32 %r9|%p1, %r0, 0xffffffff;")[5] == 0);
        REQUIRE(result("redux.sync.add.s32 %r9, %r0, 0xffffffff;")[9] == 31 * 16);
        REQUIRE(result("sub.s32 %r8, 5, %r0; redux.sync.min.s32 %r9, %r8, 0xffffffff;")[3] ==
                static_cast<uint32_t>(-26));
        REQUIRE(result("sub.s32 %r8, 5, %r0; redux.sync.max.u32 %r9, %r8, 0xffffffff;")[3] == 0xffffffff);
        REQUIRE(result("redux.sync.xor.b32 %r9, %r0, 0xffffffff;")[3] == 0);
    }
    REQUIRE(PtxKernel("activemask.b32 %r9; st.global.u32 [%d0], %r9;").run(count(32))[4] == 0xffffffff);
}

TEST_CASE("gpusim/instructions: rounding and saturation are those of the name") {
    const auto one = [](const std::string& body, float a, float b, float c) {
        return std::bit_cast<float>(PtxKernel("ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d1+4];"
                                              "ld.global.f32 %f3, [%d1+8];" +
                                              body + "st.global.f32 [%d0], %f9;")
                                        .run({bits(a), bits(b), bits(c)}, Launch{})[0]);
    };
    // The two floats around a sum or product that is none of them.
    const float third = 1.0f / 3;
    const struct {
        const char* name;
        double exact;
    } cases[] = {{"add.{}.f32 %f9, %f1, %f2;", double{third} + 1e-9f},
                 {"sub.{}.f32 %f9, %f1, %f2;", double{third} - 1e-9f},
                 {"mul.{}.f32 %f9, %f1, %f1;", double{third} * third},
                 {"fma.{}.f32 %f9, %f1, %f1, %f2;", double{third} * third + 1e-9f}};
    for (const auto& c : cases) {
        for (const bool negative : {false, true}) {
            if (negative && std::string(c.name)[0] != 'a') continue;
            INFO(c.name << negative);
            const double exact = negative ? -c.exact : c.exact;
            const float sign = negative ? -1.0f : 1.0f;
            const auto rounded = [&](const char* mode) {
                return one(fmt::format(fmt::runtime(c.name), mode), sign * third, sign * 1e-9f, 0);
            };
            const float below = rounded("rm");
            const float above = rounded("rp");
            REQUIRE((double{below} <= exact && double{above} >= exact && std::nextafterf(below, 2.0f) == above));
            REQUIRE(rounded("rz") == (negative ? above : below));
        }
    }
    REQUIRE(one("add.rm.f32 %f9, %f1, %f2;", 1.0f, 2.0f, 0) == 3.0f);
    REQUIRE(one("add.sat.f32 %f9, %f1, %f2;", 0.75f, 0.5f, 0) == 1.0f);
    REQUIRE(one("cvt.sat.f32.f32 %f9, %f1;", -3.0f, 0, 0) == 0.0f);
    REQUIRE(bits(one("cvt.sat.f32.f32 %f9, %f1;", NAN, 0, 0)) == 0);
    REQUIRE(one("fma.rn.sat.f32 %f9, %f1, %f2, %f3;", 0.5f, 0.5f, 0.25f) == 0.5f);
}

TEST_CASE("gpusim/instructions: 16-bit floats are rounded once") {
    // 1 + 2^-8 and the like, whose sums and products lie between two bf16 or f16, or near the middle of them.
    const auto result = [](const std::string& body, uint32_t a, uint32_t b, uint32_t c) {
        return PtxKernel("ld.global.u32 %r1, [%d1]; ld.global.u32 %r2, [%d1+4]; ld.global.u32 %r3, [%d1+8];" + body +
                         "st.global.u32 [%d0], %r9;")
            .run({a, b, c}, Launch{})[0];
    };
    REQUIRE(result("add.rn.bf16x2 %r9, %r1, %r2;", 0x3f803f80, 0x3f804000, 0) == 0x40004040);  // 1+1 | 1+2
    REQUIRE(result("add.bf16x2 %r9, %r1, %r2;", 0x3f813f80, 0x3b803b80, 0) == 0x3f823f80);     // ties, to even
    REQUIRE(result("mul.f16x2 %r9, %r1, %r2;", 0x3c013c00, 0x3c014000, 0) == 0x3c024000);      // (1+2^-10)^2
    REQUIRE(result("max.bf16x2 %r9, %r1, %r2;", 0x7fc0bf80, 0x3f80c000, 0) == 0x3f80bf80);
    REQUIRE(result("max.NaN.bf16x2 %r9, %r1, %r2;", 0x7fc0bf80, 0x3f80c000, 0) == 0x7fffbf80);
    REQUIRE(result("neg.f16x2 %r9, %r1;", 0x3c00bc00, 0, 0) == 0xbc003c00);
    REQUIRE(result("fma.rn.relu.bf16x2 %r9, %r1, %r2, %r3;", 0x3f80bf80, 0x40004000, 0x3f803f80) == 0x40400000);
    // f16: 1024 * 1 + 0.5 is a tie between 1024 and 1025; 2^-14 more decides, which a float in between would lose.
    REQUIRE(result("fma.rn.f16x2 %r9, %r1, %r2, %r3;", 0x64006400, 0x3c003c00, 0x38003801) == 0x64006401);
    // The product 1 + 2^-10 + ... of bf16 with a tiny addend: a tie in double and float, and not in truth.
    REQUIRE(result("fma.rn.bf16x2 %r9, %r1, %r2, %r3;", 0x3f813f81, 0x3f803f80, 0x3b803b81) == 0x3f823f82);
    REQUIRE(result("fma.rn.bf16x2 %r9, %r1, %r2, %r3;", 0x3f803f80, 0x3f803f80, 0x3b803b81) == 0x3f803f81);
    REQUIRE(result("mov.b32 {%h1, %h2}, %r1; cvt.rn.bf16.s32 %h3, %r2; mov.b32 %r9, {%h3, %h1};", 0x1234, 257, 0) ==
            0x12344380);
    REQUIRE(result("mov.b32 {%h1, %h2}, %r1; setp.gt.bf16 %p1, %h1, %h2; selp.b32 %r9, 1, 2, %p1;", 0x3f804000, 0, 0) ==
            1);
}

TEST_CASE("gpusim/instructions: atomics add 16-bit floats and pairs of them") {
    // 1 + 2 and 0.5 + 0.25, 32 times: bf16 holds every sum.
    Launch launch;
    launch.block.x = 32;
    const auto run = [&](const std::string& body, uint32_t in) {
        return PtxKernel(body).run(std::vector<uint32_t>(32, in), launch)[0];
    };
    REQUIRE(run("mov.u32 %r1, 0x40003e80; red.global.add.noftz.bf16x2 [%d18], %r1;", 0x3f803f00) == 0x42824108);
    REQUIRE(run("mov.u32 %r1, 0x40003400; atom.global.add.noftz.f16x2 %r2, [%d18], %r1;", 0x3c003800) == 0x54104840);
    REQUIRE(run("mov.u16 %h1, 0x4000; atom.global.add.noftz.bf16 %h2, [%d18], %h1;", 0x3f803f80) == 0x3f804282);
}
