// The scheduler of a kernel's blocks. In random orders, after a few instructions any warp of several blocks may run
// next.
#include "gpusim/run.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/integer.h"
#include "cpu/threads.h"
#include "gpusim/bulk.h"
#include "gpusim/cluster.h"
#include "gpusim/mbarrier.h"
#include "gpusim/warp_runner.h"

namespace teon::gpusim {

namespace {

// Random orders: the number of blocks that run by turns, and of steps of which one ends a copy.
constexpr uint64_t kBlocksAtOnce = 4;
constexpr uint64_t kCopyOneIn = 16;

// ---- a block --------------------------------------------------------------------------------------------------------

// Runs blocks one after the other and reuses their memory.
class BlockRunner {
public:
    BlockRunner() = default;
    BlockRunner(const BlockRunner&) = delete;

    void prepare(const Program& program, const Launch& launch, const uint8_t* parameters,
                 const std::vector<Range>& memory, bool counts, Cluster* cluster, uint32_t rank) {
        if (counts) counts_.resize(program.code.size());
        block_.program = &program;
        block_.launch = &launch;
        block_.memory = &memory;
        block_.parameters = parameters;
        const size_t warps = (launch.block.count() + 31) / 32;
        const size_t align = std::max<size_t>(program.dynamic_align, 16);
        const size_t dynamic = round_up(program.static_shared, align);
        block_.shared.resize(launch.dynamic_shared ? dynamic + launch.dynamic_shared : program.static_shared,
                             program.asynchronous, program.joins_warps, cluster != nullptr);
        block_.cluster = cluster;
        block_.rank = rank;
        block_.warps.resize(warps);
        const size_t local = 32 * program.local_bytes;
        storage_ = {static_cast<uint8_t*>(std::aligned_alloc(64, std::max<size_t>(64, warps * program.register_bytes))),
                    &std::free};
        CHECK(storage_, "{}: no memory for the registers of {} warps", program.name, warps);
        std::memset(storage_.get(), 0xff, warps * program.register_bytes);
        local_.assign(warps * local, 0xff);
        for (size_t k = 0; k < warps; ++k) {
            Warp& w = block_.warps[k];
            w = {};
            w.program = &program;
            w.block = &block_;
            w.index = static_cast<int>(k);
            w.counts = counts ? counts_.data() : nullptr;
            w.registers = storage_.get() + k * program.register_bytes;
            w.local = local_.data() + k * local;
            for (const Constant& c : program.constants) {
                const uint64_t bits = c.from_dynamic ? dynamic + c.bits : c.bits;
                if (c.bytes == 0) *w.at<Lanes>(c.place) = bits ? kAllLanes : 0;
                for (int l = 0; l < 32 && c.bytes; ++l)
                    std::memcpy(w.at<uint8_t>(c.place) + l * c.bytes, &bits, static_cast<size_t>(c.bytes));
            }
        }
    }

    Block& block() { return block_; }
    bool has_ended() const { return block_.has_ended; }

    void begin(const Extent3& at) {
        const Launch& launch = *block_.launch;
        block_.index = at;
        block_.has_ended = false;
        const uint64_t index = at.x + uint64_t{launch.grid.x} * (at.y + uint64_t{launch.grid.y} * at.z);
        block_.random = launch.order.seed ^ (index + 1) * 0x9e3779b97f4a7c15u;
        block_.shared.begin_block();
        block_.mbarriers.clear();
        block_.remote.clear();
        block_.last_remote.clear();
        block_.named = {};
        block_.bulk.clear();
        block_.warpgroups.clear();
        block_.idle = 0;
        const uint64_t threads = launch.block.count();
        for (Warp& w : block_.warps) {
            const uint64_t threads_left = threads - 32 * static_cast<uint64_t>(w.index);
            w.live = threads_left >= 32 ? kAllLanes : (Lanes{1} << threads_left) - 1;
            w.groups.assign(1, {0, w.live});
            w.at_barrier = w.waited = w.blocked = false;
            w.refused = nullptr;
            w.loops = 0;
            w.products.clear();
            w.products_begun = 0;
            w.begun_at_commit.clear();
            w.registers_held = block_.program->registers;
            w.near = {1, 0};
            w.clock = {};
            w.committed = {};
            for (auto& reads : w.bulk_reads) reads.clear();
            w.bulk_committed = {};
            w.seen_of.assign(block_.cluster ? launch.cluster.count() : 0, View{});
            w.cluster_arrivals = w.cluster_passes = 0;
            w.cluster_passed = 0;
            WarpRunner(w, random()).divide();
        }
    }

    // Runs every warp until it waits; in random orders, runs one warp for a few instructions. If all warps wait, lets
    // some continue. Returns false if none can, or once the block has ended.
    bool step() {
        const size_t n = block_.warps.size();
        const size_t first = random() ? pick(block_, n) : 0;
        const bool reverse = block_.launch->order.kind == Order::Kind::reverse;
        if (random() && !block_.bulk.empty() && pick(block_, kCopyOneIn) == 0) land_one();
        for (size_t k = 0; k < n; ++k) {
            WarpRunner runner(block_.warps[reverse ? n - 1 - k : (first + k) % n], random());
            if (!runner.can_run()) continue;
            random() ? runner.run_some() : runner.run();
            if (random()) return true;
        }
        if (wake() || pass_named_barriers(block_) || pass_barrier()) return true;
        block_.has_ended = std::ranges::none_of(block_.warps, [](const Warp& w) { return w.live; });
        if (!block_.has_ended) return false;
        check_end(block_);
        forget_copies();
        return false;
    }

    void report_endless() {
        for (const bool blocked : {true, false})
            for (Warp& w : block_.warps)
                if (w.live && w.blocked == blocked) WarpRunner(w, random()).report_endless();
    }

    // Ends a copy, if one is in flight; returns whether one was. Except in random orders, copies end as late as
    // possible: only when no warp can continue.
    bool land_one() {
        const size_t n = block_.bulk.size();
        if (n == 0) return false;
        const bool reverse = block_.launch->order.kind == Order::Kind::reverse;
        const size_t in_order = reverse ? n - 1 : 0;
        land(block_, random() ? pick(block_, n) : in_order);
        return true;
    }

    const std::vector<Count>& counts() const { return counts_; }

private:
    bool random() const { return block_.launch->order.kind == Order::Kind::random; }

    // Unblocks the warps that can run again. Returns whether there are any.
    bool wake() {
        bool any = false;
        for (Warp& w : block_.warps) {
            if (!w.live || !w.blocked || !WarpRunner(w, random()).wakes()) continue;
            w.blocked = false;
            any = true;
        }
        return any;
    }

    // Lets all warps pass the barrier if they wait there. Returns whether they did.
    bool pass_barrier() {
        const Instruction* barrier = nullptr;
        Views seen;
        View times{};
        for (Warp& w : block_.warps) {
            if (!w.live) continue;
            if (!w.at_barrier || block_.program->code[static_cast<size_t>(w.groups[0].at)].count) return false;
            merge(seen, release(w, kAllLanes));
            times[static_cast<size_t>(w.index)] = w.clock.time;
        }
        for (Warp& w : block_.warps) {
            if (!w.live) continue;
            const Instruction& i = block_.program->code[static_cast<size_t>(w.groups[0].at)];
            if (!barrier) barrier = &i;
            // nvcc may have duplicated a barrier; the lines are then equal.
            if (barrier->line != i.line || barrier->file != i.file)
                fail(w, i, first_lane(w.live),
                     "a barrier that only part of the block reaches: other warps are at the one of {}",
                     block_.program->place(*barrier));
            w.groups[0].waits = w.at_barrier = false;
            ++w.groups[0].at;
            const uint32_t time = w.clock.time;
            w.clock = {};
            w.clock.time = time;
            acquire(w, seen);
            WarpRunner(w, random()).divide();
        }
        if (barrier) block_.shared.barrier(times);
        return barrier != nullptr;
    }

    void forget_copies() {
        for (Warp& w : block_.warps) {
            for (auto& copies : w.copies) {
                for (const Copy& c : copies) block_.shared.forget(c.to, c.bytes);
                copies.clear();
            }
        }
    }

    Block block_;
    std::unique_ptr<uint8_t, decltype(&std::free)> storage_{nullptr, &std::free};
    std::vector<uint8_t> local_;
    std::vector<Count> counts_;
};

// Runs the blocks of a cluster by turns; without clusters, one block.
class ClusterRunner {
public:
    ClusterRunner(const Program& program, const Launch& launch, const uint8_t* parameters,
                  const std::vector<Range>& memory, bool counts)
        : launch_(launch), blocks_(launch.cluster.count()) {
        for (BlockRunner& b : blocks_) {
            const auto rank = static_cast<uint32_t>(&b - blocks_.data());
            b.prepare(program, launch, parameters, memory, counts, blocks_.size() > 1 ? &cluster_ : nullptr, rank);
            cluster_.blocks.push_back(&b.block());
            b.block().at_cluster_barrier = at_barrier_;
        }
    }
    ClusterRunner(const ClusterRunner&) = delete;

    void begin(uint64_t index) {
        const Extent3& c = launch_.cluster;
        const Extent3 clusters = {launch_.grid.x / c.x, launch_.grid.y / c.y, launch_.grid.z / c.z};
        const Extent3 at = extent_at(clusters, index);
        for (Views& views : at_barrier_) views = {};
        for (size_t rank = 0; rank < blocks_.size(); ++rank) {
            const Extent3 in = extent_at(c, rank);
            blocks_[rank].begin({at.x * c.x + in.x, at.y * c.y + in.y, at.z * c.z + in.z});
        }
    }

    // Runs each block until it waits; in random orders, one of them for a few instructions. Returns false once all have
    // ended.
    bool step() {
        const size_t n = blocks_.size();
        const bool random = launch_.order.kind == Order::Kind::random;
        const size_t first = random && n > 1 ? pick(blocks_[0].block(), n) : 0;
        bool any = false;
        for (size_t k = 0; k < n; ++k) {
            BlockRunner& b = blocks_[(first + k) % n];
            if (b.has_ended() || !b.step()) continue;
            any = true;
            if (random) break;
        }
        if (any) return true;
        for (size_t k = 0; k < n; ++k)
            if (blocks_[(first + k) % n].land_one()) return true;
        for (BlockRunner& b : blocks_)
            if (!b.has_ended()) b.report_endless();
        return false;
    }

    std::vector<BlockRunner>& blocks() { return blocks_; }

private:
    static Extent3 extent_at(const Extent3& of, uint64_t index) {
        return {static_cast<uint32_t>(index % of.x), static_cast<uint32_t>(index / of.x % of.y),
                static_cast<uint32_t>(index / of.x / of.y)};
    }

    const Launch& launch_;
    Cluster cluster_;
    Views at_barrier_[2];
    std::vector<BlockRunner> blocks_;
};

}  // namespace

namespace {

// Returns which of `n` clusters of a launch runs next: in random orders any, else the next in turn.
size_t next_to_run(const Launch& launch, size_t n, uint64_t& turn) {
    if (n == 1) return 0;
    if (launch.order.kind == Order::Kind::random) return splitmix64(turn) % n;
    const size_t in_turn = turn++ % n;
    return launch.order.kind == Order::Kind::reverse ? n - 1 - in_turn : in_turn;
}

}  // namespace

std::vector<uint8_t> pack(const Program& program, const void* const* arguments) {
    std::vector<uint8_t> bytes(program.parameter_bytes);
    for (size_t k = 0; k < program.parameters.size(); ++k) {
        const Parameter& p = program.parameters[k];
        std::memcpy(bytes.data() + p.offset, arguments[k], p.bytes);
    }
    return bytes;
}

void run(const Program& program, const Launch& launch, const std::vector<uint8_t>& parameters,
         const std::vector<Range>& memory, KernelCounts* counts) {
    const uint64_t clusters = launch.grid.count() / launch.cluster.count();
    const bool random = launch.order.kind == Order::Kind::random;
    const uint64_t by_turns = random ? std::min(kBlocksAtOnce, clusters) : 1;
    const uint64_t at_once = launch.cooperative ? clusters : by_turns;
    // A few pieces for each thread; the thread prepares its state once for each piece.
    const auto pieces =
        static_cast<int64_t>(std::min<uint64_t>(clusters / at_once, 4 * static_cast<uint64_t>(cpu::thread_count())));
    cpu::parallel_for(pieces, 1, [&](int64_t piece) {
        const auto n = static_cast<uint64_t>(pieces);
        const auto k = static_cast<uint64_t>(piece);
        uint64_t next = clusters * k / n;
        uint64_t turn = launch.order.seed + k;
        const uint64_t end = clusters * (k + 1) / n;
        std::vector<std::unique_ptr<ClusterRunner>> runners;
        std::vector<ClusterRunner*> running;
        for (uint64_t r = 0; r < at_once; ++r) {
            runners.push_back(
                std::make_unique<ClusterRunner>(program, launch, parameters.data(), memory, counts != nullptr));
            runners.back()->begin(next++);
            running.push_back(runners.back().get());
        }
        while (!running.empty()) {
            const size_t one = next_to_run(launch, running.size(), turn);
            if (running[one]->step()) continue;
            if (next < end)
                running[one]->begin(next++);
            else
                running.erase(running.begin() + static_cast<std::ptrdiff_t>(one));
        }
        for (const auto& runner : runners)
            for (const BlockRunner& b : runner->blocks())
                if (counts) counts->add(b.counts());
    });
}

}  // namespace teon::gpusim
