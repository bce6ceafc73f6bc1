// wgmma of FP8.
#include <array>
#include <cmath>

#include "gpusim/test/ptx_kernel.h"
#include "test/support/catch.h"

using namespace teon::test;

namespace {

constexpr int kM = 64;
constexpr int kN = 8;
constexpr int kK = 32;

// "Alternate Floating-Point Data Formats", from the bits: the sign, then the exponent, then `mantissa` bits.
float value_of(uint8_t bits, bool e5m2) {
    const int mantissa = e5m2 ? 2 : 3;
    const int bias = e5m2 ? 15 : 7;
    const int exponent = (bits & 0x7f) >> mantissa;
    const int fraction = bits & ((1 << mantissa) - 1);
    const float magnitude = exponent
                                ? std::ldexp(static_cast<float>((1 << mantissa) + fraction), exponent - bias - mantissa)
                                : std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa);
    return bits & 0x80 ? -magnitude : magnitude;
}

// The bits of element `index` of A or B: of both signs, subnormal numbers among them, of at most 2 in magnitude.
uint8_t bits_of(int index) {
    constexpr int kCodes = 0x41;
    return static_cast<uint8_t>((index * 29 + 5) % kCodes | (index * 7 / 3 % 2 ? 0x80 : 0));
}

// Copies `in` to shared memory in rows of 32 bytes, swizzled: 64 rows of A, then 8 rows of B. %d6, %d7: descriptors.
const std::string kLoad = R"(
    mov.u32 %r1, buffer; mov.u32 %r2, %r0;
    AGAIN:
    mul.wide.u32 %d2, %r2, 4; add.s64 %d2, %d19, %d2; ld.global.u32 %r3, [%d2];
    shl.b32 %r4, %r2, 2; shr.u32 %r5, %r4, 3; and.b32 %r5, %r5, 16; xor.b32 %r4, %r4, %r5; add.u32 %r4, %r4, %r1;
    st.shared.u32 [%r4], %r3;
    add.u32 %r2, %r2, 128; setp.lt.u32 %p1, %r2, 576; @%p1 bra AGAIN;
    fence.proxy.async; bar.sync 0;
    shr.u32 %r6, %r1, 4; cvt.u64.u32 %d6, %r6; or.b64 %d6, %d6, 0xC000001000000000; add.s64 %d7, %d6, 128;
    mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f00000000; mov.f32 %f3, 0f40000000; mov.f32 %f4, 0f00000000;
    setp.eq.u32 %p2, %r1, %r1;
    )";
const std::string kStore = R"(
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    mul.wide.u32 %d3, %r0, 16; add.s64 %d3, %d18, %d3; st.global.v4.f32 [%d3], {%f1, %f2, %f3, %f4};)";
// Lane l of a warp holds bytes 4 (l % 4) to 4 (l % 4) + 3, and those 16 later, of rows l / 4 and l / 4 + 8 of A.
const std::string kRegistersA = R"(
    shr.u32 %r7, %r0, 5; shl.b32 %r7, %r7, 4; shr.u32 %r8, %r0, 2; and.b32 %r8, %r8, 7; add.u32 %r7, %r7, %r8;
    and.b32 %r8, %r0, 3; shl.b32 %r7, %r7, 3; add.u32 %r7, %r7, %r8; mul.wide.u32 %d4, %r7, 4; add.s64 %d4, %d19, %d4;
    ld.global.u32 %r10, [%d4]; ld.global.u32 %r11, [%d4+256]; ld.global.u32 %r12, [%d4+16];
    ld.global.u32 %r13, [%d4+272];)";

}  // namespace

TEST_CASE("gpusim/fp8: wgmma multiplies both types, from shared memory and from registers") {
    for (const bool a_e5m2 : {false, true}) {
        for (const bool b_e5m2 : {false, true}) {
            for (const bool from_registers : {false, true}) {
                std::array<uint8_t, (kM + kN) * kK> bytes;
                for (int x = 0; x < (kM + kN) * kK; ++x) bytes[static_cast<size_t>(x)] = bits_of(x);
                std::vector<uint32_t> in(bytes.size() / 4);
                std::memcpy(in.data(), bytes.data(), bytes.size());
                const auto name = [](bool e5m2) { return e5m2 ? "e5m2" : "e4m3"; };
                const std::string product = fmt::format(
                    "wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k32.f32.{}.{} {{%f1, %f2, "
                    "%f3, %f4}}, {}, %d7, %p2, 1, 1;",
                    name(a_e5m2), name(b_e5m2), from_registers ? "{%r10, %r11, %r12, %r13}" : "%d6");
                Launch launch;
                launch.block.x = 128;
                const auto out = PtxKernel(kLoad + (from_registers ? kRegistersA : "") + product + kStore,
                                           ".shared .align 1024 .b8 buffer[2304];")
                                     .run(in, launch);
                for (int thread = 0; thread < 128; ++thread) {
                    for (int r = 0; r < 4; ++r) {
                        const int m = thread / 32 * 16 + thread % 32 / 4 + r / 2 * 8;
                        const int n = thread % 4 * 2 + r % 2;
                        double expected = r % 2 ? 0 : 1 + r / 2;
                        for (int k = 0; k < kK; ++k)
                            expected += double{value_of(bytes[static_cast<size_t>(m * kK + k)], a_e5m2)} *
                                        double{value_of(bytes[static_cast<size_t>((kM + n) * kK + k)], b_e5m2)};
                        INFO(product << " " << m << ", " << n);
                        const float d = std::bit_cast<float>(out[static_cast<size_t>(4 * thread + r)]);
                        // Sums of 32 products of at most 4, in float.
                        REQUIRE(std::fabs(d - expected) <= 32 * 128 * 0x1p-24);
                    }
                }
            }
        }
    }
}
