// Tests of clusters: the memory, mbarriers and barrier that blocks share, and copies to several blocks at once.
#include "gpusim/test/kernel_cases.h"

using namespace teon::test;

namespace {

constexpr uint32_t kThreads = 64;

// Memory of each block: an mbarrier, one word for each thread at byte 256, a tile at byte 1024. %r1 is its address, %r5
// the rank, %r6 the other rank of two, %r7 its buffer, %r2 and %r3 the thread's word in the own and in the other block.
// %p0 is set in thread 0, %p6 in rank 0. %d16 is the address of the thread's result, by the thread's index in the grid.
const std::string kMemory = ".shared .align 1024 .b8 buffer[8192];";
const std::string kBegin =
    "mov.u32 %r1, buffer; mov.u32 %r5, %cluster_ctarank; xor.b32 %r6, %r5, 1; shl.b32 %r2, %r0, 2;"
    "add.u32 %r2, %r2, %r1; mapa.shared::cluster.u32 %r7, %r1, %r6; mapa.shared::cluster.u32 %r3, %r2, %r6;"
    "setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p6, %r5, 0; mov.u32 %r30, %ctaid.x; mov.u32 %r31, %ntid.x;"
    "mad.lo.u32 %r32, %r30, %r31, %r0; mul.wide.u32 %d15, %r32, 4; add.s64 %d16, %d18, %d15;";
const std::string kSync = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";
const std::string kStoreOwn = "add.u32 %r8, %r32, 1000; st.shared.u32 [%r2+256], %r8;";
const std::string kLoadOther = "ld.shared::cluster.u32 %r9, [%r3+256];";
const std::string kResult = "st.global.u32 [%d16], %r9;";

Launch launch_of(const std::string& order) {
    Launch launch;
    launch.order = parse_order(order);
    launch.grid.x = 4;
    launch.cluster.x = 2;
    launch.block.x = kThreads;
    return launch;
}

std::vector<uint32_t> run(const std::string& body, const std::string& order, const TensorMap& map = {}) {
    return PtxKernel(kBegin + body, kMemory, map).run(std::vector<uint32_t>(4096, 7), launch_of(order));
}

std::string error_forward(const std::string& body) {
    return error_of<std::exception>([&] { run(body, "forward"); });
}

void check(const std::vector<KernelCase>& cases, const TensorMap& map = {}) {
    check_cases(cases, {"test.cu:8"}, [&](const KernelCase& c, const std::string& order) { run(c.body, order, map); });
}

// The first thread of each block makes an mbarrier of `count` arrivals, which the cluster sees after its barrier.
std::string with_mbarrier(int count) {
    return fmt::format("@%p0 mbarrier.init.shared::cta.b64 [%r1], {}; @%p0 fence.mbarrier_init.release.cluster;",
                       count);
}
std::string wait_for_phase(int parity) {
    return fmt::format(
        "$wait{0}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r1], {0}; @!%p5 bra $wait{0};",
        parity);
}
const std::string kArriveThere = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];";

TensorMap tile_of_64_rows() {
    TensorMap map;
    map.rank = 2;
    map.element_bytes = 4;
    map.type = TensorMap::kU32;
    map.strides[0] = 4;
    map.strides[1] = 64;
    map.extents[0] = 16;
    map.extents[1] = 64;
    map.box[0] = 16;
    map.box[1] = 4;
    return map;
}
// Thread 0 of rank 0 copies four rows of 64 bytes to the blocks of the mask; each block expects them.
std::string multicast(int mask, const std::string& guard = "@%p7") {
    return "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256;" + kSync +
           "and.pred %p7, %p0, %p6; mov.b64 %d4, map; cvta.param.u64 %d5, %d4; add.u32 %r10, %r1, 1024; mov.u32 %r11, "
           "0;" +
           fmt::format("mov.u16 %h1, {};", mask) + guard +
           " cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r10], "
           "[%d5, {%r11, %r11}], [%r1], %h1;";
}

}  // namespace

TEST_CASE("gpusim/clusters: blocks know their place in the cluster and in the grid of clusters") {
    const std::string body =
        "mov.u32 %r9, %cluster_ctarank; mov.u32 %r8, %clusterid.x; mad.lo.u32 %r9, %r8, 10, %r9;"
        "mov.u32 %r8, %cluster_nctarank; mad.lo.u32 %r9, %r8, 100, %r9; mov.u32 %r8, %nclusterid.x;"
        "mad.lo.u32 %r9, %r8, 1000, %r9; mov.u32 %r8, %cluster_ctaid.x; mad.lo.u32 %r9, %r8, 10000, %r9;";
    const std::vector<uint32_t> out = run(body + kResult, "forward");
    for (uint32_t block = 0; block < 4; ++block)
        REQUIRE(out[block * kThreads] == block % 2 + block / 2 * 10 + 200 + 2000 + block % 2 * 10000);
}

TEST_CASE("gpusim/clusters: a grid of two dimensions is divided into clusters of two dimensions") {
    const std::string body =
        "mov.u32 %r30, %ctaid.y; mov.u32 %r31, %ctaid.x; mad.lo.u32 %r32, %r30, 4, %r31; mul.wide.u32 %d15, %r32, 4;"
        "add.s64 %d16, %d18, %d15; mov.u32 %r9, %cluster_ctarank; mov.u32 %r8, %clusterid.x;"
        "mad.lo.u32 %r9, %r8, 10, %r9; mov.u32 %r8, %clusterid.y; mad.lo.u32 %r9, %r8, 100, %r9;";
    Launch launch;
    launch.grid = {4, 6, 1};
    launch.cluster = {2, 3, 1};
    const auto out = PtxKernel(body + kResult).run(std::vector<uint32_t>(64, 0), launch);
    for (uint32_t y = 0; y < 6; ++y)
        for (uint32_t x = 0; x < 4; ++x) REQUIRE(out[y * 4 + x] == x % 2 + y % 3 * 2 + x / 2 * 10 + y / 3 * 100);
}

TEST_CASE("gpusim/clusters: the barrier orders accesses to each other's memory") {
    for (const std::string& order : kOrders) {
        INFO(order);
        const std::vector<uint32_t> out = run(kStoreOwn + kSync + kLoadOther + kSync + kResult, order);
        for (uint32_t i = 0; i < 4 * kThreads; ++i) REQUIRE(out[i] == 1000 + (i ^ kThreads));
    }
    const std::string store_there = "st.shared::cluster.u32 [%r3+256], %r32;";
    check(
        {{"store to the other block", store_there + kSync + "ld.shared.u32 %r9, [%r2+256];", ""},
         {"store after reads", kStoreOwn + kSync + kLoadOther + kSync + "st.shared.u32 [%r2+256], 3;", ""},
         {"behind a barrier of the block", kStoreOwn + "bar.sync 0;" + kSync + "bar.sync 0;" + kLoadOther + kSync, ""},
         {"generic addresses",
          kStoreOwn + kSync +
              "cvt.u64.u32 %d5, %r2; cvta.shared.u64 %d5, %d5; mapa.u64 %d6, %d5, %r6;"
              "ld.u32 %r9, [%d6+256];" +
              kSync,
          ""}});
}

TEST_CASE("gpusim/clusters: what the barrier of the cluster does not order is found") {
    const std::string store_there = "st.shared::cluster.u32 [%r3+256], %r32;";
    const std::string arrive = "barrier.cluster.arrive.aligned;";
    const std::string wait = "barrier.cluster.wait.aligned;";
    check({{"no barrier before reading", kStoreOwn + kLoadOther + kSync, "another block's"},
           {"a barrier of the block alone", kStoreOwn + "bar.sync 0;" + kLoadOther + kSync, "another block's"},
           {"no barrier before the overwriting", kStoreOwn + kSync + kLoadOther + "st.shared.u32 [%r2+256], 3;" + kSync,
            "a race"},
           {"arrives, and does not wait", kStoreOwn + arrive + kLoadOther + wait + kSync, "another block's"},
           {"two store", kSync + store_there + "st.shared.u32 [%r2+256], 3;" + kSync, "a race"},
           {"arrives twice", arrive + arrive + wait, "twice without waiting"},
           {"waits without arriving", wait, "without having arrived"},
           {"no such rank", "mapa.shared::cluster.u32 %r3, %r2, 2; ld.shared::cluster.u32 %r9, [%r3];",
            "block 2 of a cluster of 2"},
           {"behind the memory", kSync + "ld.shared::cluster.u32 %r9, [%r7+8192];" + kSync, "of block"},
           {"misaligned", kSync + "ld.shared::cluster.u32 %r9, [%r7+258];" + kSync, "is not a multiple of 4"}});
}

TEST_CASE("gpusim/clusters: a block that waits for ever, or whose memory is gone, is found") {
    REQUIRE_THAT(error_forward("@%p6 bra $loop; bra $go; $loop: mov.u32 %r9, 0;" + with_mbarrier(1) + "bar.sync 0;" +
                               wait_for_phase(0) + "$go:" + kSync),
                 ContainsSubstring("waits for ever"));
    // Rank 0 has ended when rank 1, which runs after it, reads its memory.
    REQUIRE_THAT(error_forward(kStoreOwn + kSync + "@%p6 bra $end; bar.sync 0;" + kLoadOther + "$end:"),
                 ContainsSubstring("block 0 of the cluster has ended"));
}

TEST_CASE("gpusim/clusters: mbarriers of other blocks") {
    const std::string begin = with_mbarrier(kThreads) + kSync;
    for (const std::string& order : kOrders) {
        INFO(order);
        const auto out = run(begin + "st.shared::cluster.u32 [%r3+256], %r32;" + kArriveThere + wait_for_phase(0) +
                                 "ld.shared.u32 %r9, [%r2+256];" + kSync + kResult,
                             order);
        for (uint32_t i = 0; i < 4 * kThreads; ++i) REQUIRE(out[i] == (i ^ kThreads));
    }
    check({{"no wait",
            begin + "st.shared::cluster.u32 [%r3+256], %r32;" + kArriveThere + "ld.shared.u32 %r9, [%r2+256];" + kSync,
            "of shared memory"},
           {"made without a barrier", with_mbarrier(kThreads) + "bar.sync 0;" + kArriveThere + kSync, "mbarrier"},
           {"none there", kSync + "mbarrier.arrive.shared::cluster.b64 _, [%r7+64];",
            "there is no mbarrier at byte 64"}});
}

TEST_CASE("gpusim/clusters: a copy goes to several blocks, each of whose mbarriers counts its bytes") {
    const std::string begin = with_mbarrier(1) + kSync;
    const std::string read = wait_for_phase(0) + "ld.shared.u32 %r9, [%r2+1024];" + kSync + kResult;
    const TensorMap map = tile_of_64_rows();
    for (const std::string& order : kOrders) {
        INFO(order);
        std::vector<uint32_t> in(4096);
        for (uint32_t i = 0; i < in.size(); ++i) in[i] = 3 * i;
        const auto out = PtxKernel(kBegin + begin + multicast(3) + read, kMemory, map).run(in, launch_of(order));
        for (uint32_t i = 0; i < 4 * kThreads; ++i) REQUIRE(out[i] == 3 * (i % kThreads));
    }
    check(
        {{"right", begin + multicast(3) + read, ""},
         {"a receiver that is not there", begin + multicast(7) + read, "the receivers 0x7 of a cluster"},
         {"no receiver", begin + multicast(0) + read, "the receivers 0x0 of a cluster"},
         {"one receiver too few", begin + multicast(1) + read, "waits for ever"},
         {"read without waiting", begin + multicast(3) + "ld.shared.u32 %r9, [%r2+1024];" + kSync + kResult,
          "of shared memory"},
         {"over what the other still reads",
          begin + "st.shared.u32 [%r2+1024], 5; bar.sync 0; ld.shared.u32 %r9, [%r1+1024];" + multicast(3) + read, ""},
         {"over what the other stores meanwhile", begin + multicast(3) + "@!%p6 st.shared.u32 [%r2+1024], 5;" + read,
          "of shared memory"},
         {"over what the other reads meanwhile",
          begin + "st.shared.u32 [%r2+1024], 5; bar.sync 0;" + multicast(3) + "@!%p6 ld.shared.u32 %r9, [%r1+1024];" +
              read,
          "of shared memory"}},
        map);
}
