// Tests of mbarriers, named barriers, tensor copies and warpgroup products (sm_90a), and of their checks.
#include <algorithm>
#include <bit>

#include "gpusim/test/kernel_cases.h"

using namespace teon::test;

namespace {

const std::string kShared = ".shared .align 1024 .b8 buffer[32768];";

void check(const std::vector<KernelCase>& cases, const TensorMap& map = {}) {
    check_cases(cases, {"test.cu:8", "kernel kernel"}, [&](const KernelCase& c, const std::string& order) {
        Launch launch;
        launch.order = parse_order(order);
        launch.block.x = c.threads ? c.threads : 64;
        PtxKernel(c.body, kShared, map).run(std::vector<uint32_t>(8192, 1), launch);
    });
}

// Thread 0 (%p0) initializes an mbarrier of `count` arrivals at byte 0 of the buffer (%r1). %p1 is set in warp 0.
std::string with_mbarrier(int count, const std::string& fence = "fence.mbarrier_init.release.cluster;") {
    return fmt::format(
        "mov.u32 %r1, buffer; setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p1, %r0, 32;"
        "@%p0 mbarrier.init.shared::cta.b64 [%r1], {}; @%p0 {} bar.sync 0;",
        count, fence);
}
std::string wait(int parity = 0) {
    return fmt::format("$wait{0}: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1], {0}; @!%p5 bra $wait{0};",
                       parity);
}
const std::string kArrive = "mbarrier.arrive.shared::cta.b64 _, [%r1];";
const std::string kOwn = "shl.b32 %r2, %r0, 2; add.u32 %r2, %r1, %r2;";

// A tensor of `extent` rows of 64 bf16. One copy transfers `rows` rows.
TensorMap rows_of_64(uint32_t extent, uint32_t rows, uint16_t swizzle) {
    TensorMap map;
    map.rank = 2;
    map.element_bytes = 2;
    map.swizzle_bytes = swizzle;
    map.strides[0] = 2;
    map.strides[1] = 128;
    map.extents[0] = 64;
    map.extents[1] = extent;
    map.box[0] = 64;
    map.box[1] = rows;
    return map;
}
// Thread 0 copies `rows` rows, from row `first` on, to byte 1024 of the buffer.
std::string copy_rows(int rows, int first = 0, int expected = -1) {
    return fmt::format(
        "mov.b64 %d4, map; cvta.param.u64 %d5, %d4; add.u32 %r3, %r1, 1024; mov.u32 %r4, 0; mov.u32 %r5, {};"
        "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {};"
        "@%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d5, {{%r4, %r5}}], "
        "[%r1];",
        first, expected < 0 ? 128 * rows : expected);
}

// Returns whether the model has noted such a text.
bool has_note(const std::string& text) {
    const std::vector<std::string> all = notes();
    return std::any_of(all.begin(), all.end(), [&](const std::string& one) { return contains(one, text); });
}

uint32_t two_bf16(int a, int b) {
    const auto bits = [](int x) { return std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16; };
    return bits(a) | bits(b) << 16;
}

}  // namespace

TEST_CASE("gpusim/asynchronous: mbarriers order what was done before an arrival and after a wait") {
    const std::string pass =
        with_mbarrier(32) + kOwn + "@%p1 bra $read; st.shared.u32 [%r2+1024], %r0;" + kArrive + "bra $end; $read:";
    const std::string read = "ld.shared.u32 %r4, [%r2+1152];";
    check(
        {{"waits", pass + wait() + read + "$end:", ""},
         {"polls",
          pass + "$w: mbarrier.test_wait.parity.shared::cta.b64 %p5, [%r1], 0; @!%p5 bra $w;" + read + "$end:", ""},
         {"does not wait", pass + "bar.warp.sync -1; st.shared.u32 [%r2+1152], %r0; $end:", "a race"},
         {"waits for the phase before", pass + wait(1) + "st.shared.u32 [%r2+1152], %r0; $end:", "of shared memory"},
         {"no barrier there", "mov.u32 %r1, buffer; st.shared.u64 [%r1], 0; @%p0 bra $e; $e:" + kArrive,
          "there is no mbarrier at byte 0", 1},
         {"not initialized for the others",
          "mov.u32 %r1, buffer; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [%r1], 2; bar.warp.sync -1;"
          "@%p0 bra $end;" +
              kArrive + "$end:",
          "of shared memory", 64},
         {"two read, the third writes behind both",
          with_mbarrier(64) + kOwn + "setp.ge.u32 %p2, %r0, 64; @%p2 bra $write; ld.shared.u32 %r4, [%r1];" + kArrive +
              "bra $end; $write: setp.eq.u32 %p3, %r0, 64;" + wait() + "@%p3 st.shared.u32 [%r1+1024], %r4; $end:",
          "", 96},
         {"one lane arrives for all",
          with_mbarrier(1) + kOwn +
              "@%p1 bra $read; st.shared.u32 [%r2+1024], %r0; bar.warp.sync -1;"
              "setp.eq.u32 %p2, %r0, 32; @%p2 " +
              kArrive + "bra $end; $read:" + wait() + read + "$end:",
          ""},
         {"before the others have come",
          with_mbarrier(1) + kOwn + "@%p1 bra $read; st.shared.u32 [%r2+1024], %r0; setp.eq.u32 %p2, %r0, 32; @%p2 " +
              kArrive + "bra $end; $read:" + wait() + read + "$end:",
          "of shared memory"},
         {"a count of 0", with_mbarrier(0), "0 arrivals; it must be 1 to"},
         {"misaligned", "mov.u32 %r1, buffer; mbarrier.init.shared.b64 [%r1+4], 1;", "not a multiple of 8", 1},
         {"too many", with_mbarrier(40) + "@%p0 mbarrier.arrive.shared.b64 _, [%r1], 41;",
          "that expects 40 more of 40"},
         {"made twice", with_mbarrier(1) + "@%p0 mbarrier.init.shared::cta.b64 [%r1], 1;", "is an mbarrier already"},
         {"made by all lanes of a warp",
          "mov.u32 %r1, buffer; mbarrier.init.shared::cta.b64 [%r1], 32; bar.warp.sync -1;" + kArrive, "", 32},
         {"made by lanes with other counts",
          "mov.u32 %r1, buffer; add.u32 %r2, %r0, 1;"
          "mbarrier.init.shared::cta.b64 [%r1], %r2;",
          "is an mbarrier already", 32},
         {"made again",
          with_mbarrier(1) + "@%p0 mbarrier.inval.shared.b64 [%r1]; "
                             "@%p0 mbarrier.init.shared::cta.b64 [%r1], 1;",
          ""},
         {"for ever", with_mbarrier(65) + kArrive + wait(),
          "waits for ever: for phase 0 of the mbarrier at byte 0 of shared memory, which lacks 1 of 65 arrivals"},
         {"for bytes", with_mbarrier(64) + "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;" + wait(),
          "lacks 0 of 64 arrivals and 1024 bytes"}});
    REQUIRE(has_note("several threads make the same mbarrier"));
}

TEST_CASE("gpusim/asynchronous: the parity of an mbarrier distinguishes its phases") {
    check({{"", with_mbarrier(64) + kArrive + wait(0) + kArrive + wait(1), ""},
           {"a parity of 2", with_mbarrier(64) + kArrive + wait(2), "the parity 2 is neither 0 nor 1"},
           {"the next one does not end", with_mbarrier(64) + kArrive + wait(0) + wait(1), "phase 1 of the mbarrier"}});
}

TEST_CASE("gpusim/asynchronous: named barriers join some warps") {
    const std::string addresses = "mov.u32 %r1, buffer; setp.lt.u32 %p1, %r0, 32;" + kOwn;
    const std::string store = addresses + "@%p1 bra $read; st.shared.u32 [%r2], %r0;";
    const std::string load = "ld.shared.u32 %r4, [%r2+128];";
    check({{"both wait", store + "bar.sync 1, 64; bra $end; $read: bar.sync 1, 64;" + load + "$end:", ""},
           {"one arrives", store + "bar.arrive 1, 64; bra $end; $read: bar.sync 1, 64;" + load + "$end:", ""},
           {"the reader arrives only",
            store + "bar.sync 1, 64; bra $end; $read: bar.arrive 1, 64; "
                    "st.shared.u32 [%r2+128], %r0; $end:",
            "a race"},
           {"all threads of the block", store + "bar.sync 1; bra $end; $read: bar.sync 1;" + load + "$end:", ""},
           {"another barrier", store + "bar.sync 2, 64; bra $end; $read: bar.sync 1, 64;" + load + "$end:",
            "waits for ever: too few threads"},
           {"too many", addresses + "bar.sync 1, 32;", "64 threads at barrier 1 of 32"},
           {"counts differ",
            store + "bar.sync 1, 64; bra $end; $read: bar.sync 1, 96; $end:", "threads at barrier 1, but"}});
}

TEST_CASE("gpusim/asynchronous: registers are handed on by setmaxnreg") {
    const std::string less =
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra $more; setmaxnreg.dec.sync.aligned.u32 24; bar.sync 1, 64;"
        "bra $end; $more: setmaxnreg.inc.sync.aligned.u32 ";
    check({{"as many", less + "104; bar.sync 1, 64; $end:", ""},
           {"too many", less + "112; bar.sync 1, 64; $end:", "waits for ever: for 112 registers a thread"},
           {"less is not more", "setmaxnreg.dec.sync.aligned.u32 72;", "holds 64 registers already"},
           {"nobody gives", "setmaxnreg.inc.sync.aligned.u32 72;", "waits for ever: for 72 registers a thread"}});
}

TEST_CASE("gpusim/asynchronous: a copy of a tensor's tile is swizzled, and zero where the tensor ends") {
    std::vector<uint32_t> in(8192);
    for (uint32_t k = 0; k < in.size(); ++k) in[k] = k + 1;
    for (uint16_t swizzle : {0, 32, 64, 128}) {
        Launch launch;
        launch.block.x = 64;
        // The 64 threads read rows 9 and 10 of the tile, one word each: row 10 of the tensor, and a row beyond its end.
        const PtxKernel k(with_mbarrier(1) + copy_rows(16, 1) + wait() +
                              "shl.b32 %r6, %r0, 2; add.u32 %r6, %r6, %r3; ld.shared.u32 %r7, [%r6+1152]; "
                              "st.global.u32 [%d0], %r7;",
                          kShared, rows_of_64(11, 16, swizzle));
        const std::vector<uint32_t> out = k.run(in, launch);
        for (uint32_t t = 0; t < 64; ++t) {
            INFO(swizzle << " " << t);
            const uint32_t chunk = t / 4 % 8;
            const uint32_t row = 9 + t / 32;
            const uint32_t from = (row * 128 + chunk * 16);
            const uint32_t mask = swizzle ? swizzle / 16u - 1 : 0;
            const uint32_t word = (from / 16 ^ (from / 128 & mask)) % 8 * 4 + t % 4;
            REQUIRE(out[t] == (row == 9 ? in[(row + 1) * 32 + word] : 0));
        }
    }
}

TEST_CASE("gpusim/asynchronous: checks of copies") {
    const TensorMap map = rows_of_64(16, 16, 128);
    const std::string read = "ld.shared.u32 %r4, [%r3];";
    check({{"waits", with_mbarrier(1) + copy_rows(16) + wait() + read, ""},
           {"does not", with_mbarrier(1) + copy_rows(16) + read, "of shared memory, which"},
           {"fewer bytes come", with_mbarrier(1) + copy_rows(16, 0, 4096) + wait(), "0 of 1 arrivals and 2048 bytes"},
           {"more bytes come", with_mbarrier(1) + copy_rows(16, 0, 1024) + wait(), "0 of 1 arrivals and -1024 bytes"},
           {"no fence", with_mbarrier(1, "mov.u32 %r9, 0;") + copy_rows(16) + wait() + read, ""},
           {"onto what is read", with_mbarrier(1) + kOwn + "st.shared.u32 [%r2+1024], 1;" + copy_rows(16) + wait(),
            "a race", 128}},
          map);
    REQUIRE(has_note("stored without fence.proxy.async after it"));
    check(
        {{"beyond the allocation", with_mbarrier(1) + copy_rows(16, 240) + wait(), "of an allocation of 32768 bytes"}},
        rows_of_64(300, 32, 128));
    check({{"no map", with_mbarrier(1) + copy_rows(16) + wait(), "no tensor map that"}}, [] {
        TensorMap none;
        none.magic = 0;
        return none;
    }());
}

TEST_CASE("gpusim/asynchronous: named barriers order reads of several warps before a write") {
    const std::string meet = "bar.sync 1, 64;";
    const std::string begin = "mov.u32 %r1, buffer; setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [%r1], 5;" + meet +
                              "ld.shared.u32 %r4, [%r1]; setp.eq.u32 %p2, %r0, 32;";
    const std::string write = "@%p2 st.shared.u32 [%r1], 6;";
    check({{"with a barrier", begin + meet + write, ""}, {"without", begin + write, "a race"}});
}

namespace {

std::string registers(int n, const char* name = "%f") {
    std::string list;
    for (int k = 0; k < n; ++k) list += fmt::format("{}{}{}", k ? ", " : "", name, k);
    return list;
}
// A product of 64 rows and N columns. A is `a`, a descriptor or registers; B is the descriptor %d7.
std::string product(int N, const std::string& a, int trans_b, const std::string& scale = "1") {
    return fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.bf16.bf16 {{{}}}, {}, %d7, {}, 1, 1, {}{};", N,
                       registers(N / 2), a, scale, a[0] == '{' ? "" : "0, ", trans_b);
}
// Sets %d6 and %d7 to the descriptors of A, at byte 1024, and of B, after A's 64 rows.
const std::string kDescriptors =
    "add.u32 %r6, %r1, 1024; shr.u32 %r6, %r6, 4; cvt.u64.u32 %d6, %r6; or.b64 %d6, %d6, 0x4000004000000000;"
    "add.s64 %d7, %d6, 512;";
const std::string kFence = "wgmma.fence.sync.aligned;";
const std::string kCommit = "wgmma.commit_group.sync.aligned;";
const std::string kWait = "wgmma.wait_group.sync.aligned 0;";

}  // namespace

TEST_CASE("gpusim/asynchronous: wgmma multiplies swizzled tiles, and registers") {
    // Rows 0 to 63 are A. The rows after them are B: 64 columns of 16 k or, if trans_b, 16 k of 64 columns.
    std::vector<uint32_t> in(8192);
    const auto value = [](int row, int column) { return (row * 7 + column * 3) % 11 - 5; };
    for (int row = 0; row < 128; ++row)
        for (int pair = 0; pair < 32; ++pair)
            in[static_cast<size_t>(row * 32 + pair)] = two_bf16(value(row, 2 * pair), value(row, 2 * pair + 1));
    for (const bool trans_b : {false, true}) {
        for (const bool from_registers : {false, true}) {
            const std::string load =  // A's fragment for k from 16 to 31
                "and.b32 %r7, %r0, 3; shr.u32 %r8, %r0, 2; and.b32 %r8, %r8, 7; shr.u32 %r9, %r0, 5;"
                "mad.lo.s32 %r8, %r9, 16, %r8; mad.lo.s32 %r8, %r8, 32, %r7; mul.wide.u32 %d8, %r8, 4;"
                "add.s64 %d8, %d8, %d19; ld.global.u32 %r20, [%d8+32]; ld.global.u32 %r21, [%d8+1056];"
                "ld.global.u32 %r22, [%d8+48]; ld.global.u32 %r23, [%d8+1072];";
            std::string store;
            for (int k = 0; k < 32; ++k) store += fmt::format("st.global.f32 [%d9+{}], %f{};", 4 * k, k);
            Launch launch;
            launch.block.x = 128;
            for (const std::string& order : kOrders) {
                launch.order = parse_order(order);
                const PtxKernel k(
                    with_mbarrier(1) + copy_rows(128) + load + kDescriptors + wait() + kFence +
                        product(64, "%d6", trans_b, "0") + "add.s64 %d6, %d6, 2;" +
                        (trans_b ? "" : "add.s64 %d7, %d7, 2;") +
                        product(64, from_registers ? "{%r20, %r21, %r22, %r23}" : "%d6", trans_b) + kCommit + kWait +
                        "shl.b32 %r10, %r0, 5; mul.wide.u32 %d9, %r10, 4; add.s64 %d9, %d9, %d18;" + store,
                    kShared, rows_of_64(256, 128, 128));
                const std::vector<uint32_t> out = k.run(in, launch);
                for (int t = 0; t < 128; ++t) {
                    for (int r = 0; r < 32; ++r) {
                        const int row = t / 32 * 16 + t % 32 / 4 + r / 2 % 2 * 8;
                        const int column = r / 4 * 8 + t % 4 * 2 + r % 2;
                        int sum = 0;
                        for (int k = 0; k < 32; ++k)
                            sum += value(row, k) * (trans_b ? value(64 + k % 16, column) : value(64 + column, k));
                        INFO(order << " " << trans_b << from_registers << ": " << row << ", " << column);
                        REQUIRE(std::bit_cast<float>(out[static_cast<size_t>(32 * t + r)]) == static_cast<float>(sum));
                    }
                }
            }
        }
    }
}

TEST_CASE("gpusim/asynchronous: checks of wgmma") {
    const TensorMap map = rows_of_64(256, 80, 128);
    const std::string begin = with_mbarrier(1) + copy_rows(80) + kDescriptors;
    const std::string ready = begin + wait() + kFence;
    const std::string mma = product(8, "%d6", 0, "0");
    const std::string use = "add.f32 %f9, %f0, %f1;";
    const std::string from_registers = product(8, "{%r20, %r21, %r22, %r23}", 0, "0");
    // Warps 0 to 3 (%p4) multiply; warp 4 then overwrites A.
    const std::string release =
        "setp.lt.u32 %p4, %r0, 128; add.u32 %r30, %r1, 8; @%p0 mbarrier.init.shared::cta.b64 [%r30], 1;"
        "@%p0 fence.mbarrier_init.release.cluster; bar.sync 0;";
    const std::string begin_products = copy_rows(80) + kDescriptors + wait() + kFence;
    const std::string arrive = "mbarrier.arrive.shared::cta.b64 _, [%r30];";
    const std::string released =
        "$released: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r30], 0; @!%p5 bra $released;";
    const std::string overwrite = "shl.b32 %r31, %r0, 2; add.u32 %r31, %r31, %r1; st.shared.u32 [%r31+640], 1;";
    check({{"right", ready + mma + kCommit + kWait + use, "", 128},
           {"not there yet", begin + kFence + mma + kCommit + kWait, "of shared memory, which", 128},
           {"no fence", begin + wait() + mma + kCommit + kWait, "written since the last wgmma.fence", 128},
           {"A changed behind the fence", ready + "mov.u32 %r20, 1;" + from_registers + kCommit + kWait,
            "written since the last wgmma.fence", 128},
           {"D is read", ready + mma + kCommit + use + kWait, "that no wgmma.wait_group has ended", 128},
           {"D is written", ready + mma + kCommit + "add.f32 %f1, %f9, %f9;" + kWait, "that no wgmma.wait_group", 128},
           {"A is written", ready + from_registers + kCommit + "add.u32 %r20, %r1, 1;" + kWait, "that no wgmma.wait",
            128},
           {"another name", ready + mma + kCommit + "mov.f32 %f20, %f0; add.f32 %f9, %f20, %f20;" + kWait,
            "that no wgmma.wait_group has ended", 128},
           {"not committed", ready + mma + kWait + use, "that no wgmma.wait_group has ended", 128},
           {"a later group", ready + mma + kCommit + kCommit + "wgmma.wait_group.sync.aligned 1;" + use, "", 128},
           {"in a loop",
            ready + "mov.u32 %r30, 0; $more:" + mma + kCommit +
                "add.u32 %r30, %r30, 1; setp.lt.u32 %p6, %r30, 3;"
                "@%p6 bra $more;" +
                kWait + use,
            "", 128},
           {"on one path", ready + mma + kCommit + "@%p1 bra $skip;" + kWait + "$skip:" + use,
            "that no wgmma.wait_group has ended", 128},
           {"a row of eight", ready + "add.s64 %d6, %d6, 8;" + mma + kCommit + kWait, "", 128},
           {"not swizzled", ready + "and.b64 %d6, %d6, 0x3fffffffffffffff;" + mma, "is not swizzled", 128},
           {"lost bits", ready + "or.b64 %d6, %d6, 0x4000;" + mma, "has bits that mean nothing", 128},
           {"lanes differ", ready + "cvt.u64.u32 %d9, %r0; add.s64 %d6, %d6, %d9;" + mma, "than lane 0's", 128},
           {"beyond", ready + "add.s64 %d7, %d7, 2048;" + mma, "of which the block has 32768", 128},
           {"never written", ready + "add.s64 %d7, %d7, 512;" + mma, "which nothing has written", 128},
           {"three warps", ready + mma, "fewer than four warps", 96},
           {"warps differ", ready + "@%p1 add.s64 %d7, %d7, 64;" + mma + kCommit + kWait,
            "another warp of the warpgroup", 128},
           {"overwritten", ready + mma + kCommit + "bar.sync 0;" + kOwn + "st.shared.u32 [%r2+1024], 1;" + kWait,
            "which wgmma of warp", 128},
           {"overwritten before others have waited, but after the warpgroup's products ended",
            ready + mma + kCommit + kWait + kOwn + "st.shared.u32 [%r2+1024], 1; fence.proxy.async;", "", 128},
           {"one thread of the warpgroup releases the buffer",
            with_mbarrier(1) + release + "@!%p4 bra $other;" + begin_products + mma + kCommit + kWait +
                "setp.eq.u32 %p3, %r0, 96; @%p3 " + arrive + "bra.uni $end; $other:" + released + overwrite + "$end:",
            "", 160},
           {"a thread releases it without a wait",
            with_mbarrier(1) + release + "@!%p4 bra $other;" + begin_products + mma + kCommit +
                "setp.eq.u32 %p3, %r0, 96; @%p3 " + arrive + kWait + "bra.uni $end; $other:" + released + overwrite +
                "$end:",
            "which wgmma of warp", 160},
           {"it is released by a group that may still be in flight",
            with_mbarrier(1) + release + "@!%p4 bra $other;" + begin_products + mma + kCommit +
                "wgmma.wait_group.sync.aligned 1; setp.eq.u32 %p3, %r0, 96; @%p3 " + arrive + kWait +
                "bra.uni $end; $other:" + released + overwrite + "$end:",
            "which wgmma of warp", 160},
           {"overwritten afterwards",
            ready + mma + kCommit + kWait + "bar.sync 0;" + kOwn + "st.shared.u32 [%r2+1024], 1;", "", 128},
           {"copied onto", ready + mma + kCommit + "bar.sync 0;" + copy_rows(80) + kWait, "which wgmma of warp", 128},
           {"stored",
            ready + kOwn + "st.shared.u32 [%r2+1024], 1; fence.proxy.async.shared::cta; bar.sync 0;" + mma + kCommit +
                kWait,
            "", 128},
           {"stored without a fence", ready + kOwn + "st.shared.u32 [%r2+1024], 1; bar.sync 0;" + mma,
            "without fence.proxy.async", 128},
           {"stored without a barrier",
            ready + kOwn + "st.shared.u32 [%r2+1024], 1; fence.proxy.async;" + mma + kCommit + kWait, "a race", 128}},
          map);
    REQUIRE(has_note("not in the first of eight rows"));
}
