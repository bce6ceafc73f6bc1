// Tests of bulk copies out of shared memory and of bytes into it, and of their checks.
#include <bit>

#include "gpusim/test/kernel_cases.h"

using namespace teon::test;

namespace {

const std::string kMemory = ".shared .align 1024 .b8 buffer[16384];";

// %r1: the buffer, with an mbarrier at byte 0 and data from byte 1024 on; %r2: the thread's word of the data; %r3: the
// data. %p0 is set in thread 0. %d5: the tensor map.
const std::string kBegin =
    "mov.u32 %r1, buffer; add.u32 %r3, %r1, 1024; shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r3; setp.eq.u32 %p0, %r0, 0;"
    "mov.b64 %d4, map; cvta.param.u64 %d5, %d4; mov.u32 %r4, 0; mov.u32 %r5, 4;";
const std::string kStore = "add.u32 %r8, %r0, 100; st.shared.u32 [%r2], %r8;";
const std::string kFence = "fence.proxy.async.shared::cta; bar.sync 0;";
const std::string kWait = "@%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group.read 0;";

// 64 rows of 16 words, of which a copy transfers four.
TensorMap tile(uint8_t type, uint8_t swizzle = 0, uint32_t extent = 64) {
    TensorMap map;
    map.rank = 2;
    map.element_bytes = 4;
    map.type = type;
    map.swizzle_bytes = swizzle;
    map.strides[0] = 4;
    map.strides[1] = 64;
    map.extents[0] = 16;
    map.extents[1] = extent;
    map.box[0] = 16;
    map.box[1] = 4;
    return map;
}

// Runs 64 threads on the tensor `in`, and returns it.
std::vector<uint32_t> run(const std::string& body, std::vector<uint32_t> in, const TensorMap& map,
                          const std::string& order) {
    Launch launch;
    launch.order = parse_order(order);
    launch.block.x = 64;
    // `out` is initialized like `in`: the tensor that a kernel changes is made of its address.
    return PtxKernel(kBegin + body, kMemory, map).run_on_output(std::move(in), launch);
}

void check(const std::vector<KernelCase>& cases) {
    check_cases(cases, {}, [](const KernelCase& c, const std::string& order) {
        run(c.body, std::vector<uint32_t>(1024, 1), tile(TensorMap::kU32), order);
    });
}

const std::string kTensorStore = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d5, {%r4, %r5}], [%r3];";
std::string add_of(const std::string& type) {
    return "cp.reduce.async.bulk.global.shared::cta.bulk_group.add." + type + " [%d18], [%r3], 256;";
}

}  // namespace

TEST_CASE("gpusim/bulk: a tile is stored, as its swizzle has it") {
    for (const std::string& order : kOrders) {
        INFO(order);
        for (const int swizzle : {0, 64}) {
            INFO(swizzle);
            // A swizzle of 64 bytes exchanges groups of 16 bytes by two bits of the pair of rows.
            const std::string place =
                swizzle ? "shr.u32 %r10, %r0, 5; and.b32 %r10, %r10, 3; shl.b32 %r10, %r10, 4; sub.u32 %r11, %r2, %r1;"
                          "xor.b32 %r11, %r11, %r10; add.u32 %r2, %r11, %r1;"
                        : "";
            const auto out =
                run(place + kStore + kFence + "@%p0 " + kTensorStore + kWait, std::vector<uint32_t>(1024, 7),
                    tile(TensorMap::kU32, static_cast<uint8_t>(swizzle)), order);
            for (uint32_t i = 0; i < 1024; ++i) REQUIRE(out[i] == (i / 64 == 1 ? 100 + i % 64 : 7));
        }
    }
}

TEST_CASE("gpusim/bulk: elements outside of the tensor are neither read nor stored") {
    const auto map = tile(TensorMap::kU32, 0, 6);  // of rows 4 to 7, two exist
    const auto out =
        run("setp.lt.u32 %p2, %r0, 32; @%p2 st.shared.u32 [%r2], %r0;" + kFence + "@%p0 " + kTensorStore + kWait,
            std::vector<uint32_t>(1024, 7), map, "forward");
    for (uint32_t i = 0; i < 1024; ++i) REQUIRE(out[i] == (i >= 64 && i < 96 ? i - 64 : 7));
}

TEST_CASE("gpusim/bulk: reductions add to what is there") {
    for (const std::string& order : kOrders) {
        INFO(order);
        const auto integers = run(kStore + kFence + "@%p0 " + add_of("u32") + kWait, std::vector<uint32_t>(64, 7),
                                  tile(TensorMap::kU32), order);
        for (uint32_t i = 0; i < 64; ++i) REQUIRE(integers[i] == 107 + i);
        const std::string floats = "cvt.rn.f32.u32 %f1, %r0; st.shared.f32 [%r2], %f1;";
        const auto sums = run(floats + kFence + "@%p0 " + add_of("f32") + kWait,
                              std::vector<uint32_t>(64, std::bit_cast<uint32_t>(0.5f)), tile(TensorMap::kF32), order);
        for (uint32_t i = 0; i < 64; ++i) REQUIRE(std::bit_cast<float>(sums[i]) == static_cast<float>(i) + 0.5f);
        const auto tensor =
            run(floats + kFence +
                    "@%p0 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%d5, {%r4, %r4}], [%r3];" +
                    kWait,
                std::vector<uint32_t>(1024, std::bit_cast<uint32_t>(2.0f)), tile(TensorMap::kF32), order);
        for (uint32_t i = 0; i < 64; ++i) REQUIRE(std::bit_cast<float>(tensor[i]) == static_cast<float>(i) + 2);
    }
}

TEST_CASE("gpusim/bulk: bytes come in and go out") {
    const std::string load =
        "@%p0 mbarrier.init.shared::cta.b64 [%r1], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;"
        "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 %d6, [%r1], 256;"
        "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d18], 256, [%r1];"
        "$w: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r1], 0; @!%p5 bra $w;";
    std::vector<uint32_t> in(1024, 9);
    for (uint32_t i = 0; i < 64; ++i) in[i] = 5 * i;
    for (const std::string& order : kOrders) {
        const auto out =
            run(load + "ld.shared.u32 %r8, [%r2]; add.u32 %r8, %r8, 1; st.shared.u32 [%r2], %r8;" + kFence +
                    "add.s64 %d7, %d18, 1024;"
                    "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d7], [%r3], 256;" +
                    kWait,
                in, tile(TensorMap::kU32), order);
        for (uint32_t i = 0; i < 64; ++i) REQUIRE((out[i] == 5 * i && out[256 + i] == 5 * i + 1));
        REQUIRE(out[320] == 9);
    }
}

TEST_CASE("gpusim/bulk: a state that an arrival returned identifies the phase") {
    const std::string begin =
        "@%p0 mbarrier.init.shared::cta.b64 [%r1], 64; bar.sync 0; mbarrier.arrive.shared::cta.b64 %d6, [%r1];";
    const std::string wait = "$w: mbarrier.try_wait.shared::cta.b64 %p5, [%r1], %d6; @!%p5 bra $w;";
    check(
        {{"its own", begin + wait + "st.shared.u32 [%r2], %r0; bar.sync 0;", ""},
         {"a later phase's", begin + "add.s64 %d6, %d6, 2;" + wait, "of neither the current nor the previous phase"}});
}

TEST_CASE("gpusim/bulk: faults of copies out of shared memory") {
    const std::string store = "@%p0 " + kTensorStore;
    const std::string overwrite = "@%p0 st.shared.u32 [%r2], 1;";
    const std::string commit = "@%p0 cp.async.bulk.commit_group;";
    check({{"right", kStore + kFence + store + kWait + overwrite, ""},
           {"no fence", kStore + "bar.sync 0;" + store + kWait, "without fence.proxy.async"},
           {"the thread that copies fences for all",
            kStore + "bar.sync 0; fence.proxy.async.shared::cta;" + store + kWait, ""},
           {"it fences before the others have stored",
            kStore + "fence.proxy.async.shared::cta; @%p0 bra $copy; st.shared.u32 [%r2], %r8; $copy: bar.sync 0;" +
                store + kWait,
            "without fence.proxy.async"},
           {"the fence of device memory", kStore + "fence.proxy.async.global; bar.sync 0;" + store + kWait,
            "without fence.proxy.async"},
           {"no barrier", kStore + "fence.proxy.async.shared::cta;" + store + kWait, "of shared memory"},
           {"nothing stored", kFence + store + kWait, "which nothing has written"},
           {"overwritten without waiting", kStore + kFence + store + commit + overwrite,
            "a bulk copy of warp 0 still reads"},
           {"not committed", kStore + kFence + store + "@%p0 cp.async.bulk.wait_group.read 0;" + overwrite,
            "a bulk copy of warp 0 still reads"},
           {"one group too few", kStore + kFence + store + commit + "@%p0 cp.async.bulk.wait_group.read 1;" + overwrite,
            "a bulk copy of warp 0 still reads"},
           {"another thread overwrites without a barrier",
            kStore + kFence + store + kWait + "setp.eq.u32 %p3, %r0, 33; @%p3 st.shared.u32 [%r3], 1;",
            "of shared memory"},
           {"misaligned tile", kStore + kFence + "add.u32 %r3, %r3, 64;" + store + kWait, "not aligned to 128 bytes"},
           {"behind shared memory", kStore + kFence + "add.u32 %r3, %r3, 15360;" + store + kWait,
            "of shared memory, of which"},
           {"bytes that are no multiple of 16",
            kStore + kFence + "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d18], [%r3], 20;" + kWait,
            "all must be multiples of 16"},
           {"behind the allocation",
            kStore + kFence +
                "add.s64 %d7, %d18, 4000; and.b64 %d7, %d7, -16;"
                "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d7], [%r3], 256;" +
                kWait,
            "of device memory"}});
}
