// The scheduler. The lanes of a warp that are at the same instruction form a group. Of the groups that can run, the
// group furthest behind in the code runs first, so that lanes reconverge where their paths join. In random orders, any
// group may run first, groups are divided at random unless an instruction keeps them together ("Independent Thread
// Scheduling"), and after a few instructions any warp of several blocks may run next.
#include "gpusim/run.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/integer.h"
#include "cpu/threads.h"
#include "gpusim/bulk.h"
#include "gpusim/cluster.h"
#include "gpusim/mbarrier.h"
#include "gpusim/opcodes.h"
#include "gpusim/warpgroup.h"

namespace teon::gpusim {

namespace {

// Random orders: the maximum of instructions that a group runs at a time, and the number of blocks that run by turns.
constexpr uint64_t kMostAtOnce = 64;
constexpr uint64_t kBlocksAtOnce = 4;
// Random orders: in one of kCopyOneIn steps a copy ends; one of kPollOneIn polls that may wait returns false instead.
constexpr uint64_t kCopyOneIn = 16;
constexpr uint64_t kPollOneIn = 4;
constexpr uint64_t kMostIdlePolls = 1000000;
// Cooperative launches: a warp lets others run after this many branches back, as it may wait for another block; and it
// waits for ever if it branches back this often.
constexpr uint64_t kLoopsAtOnce = 32;
constexpr uint64_t kMostLoops = 10'000'000;

uint64_t pick(Block& b, uint64_t n) { return splitmix64(b.random) % n; }

// ---- a warp ---------------------------------------------------------------------------------------------------------

class WarpRunner {
public:
    WarpRunner(Warp& w, bool random) : w_(w), code_(w.program->code), random_(random) {}

    bool can_run() const { return w_.live && !w_.at_barrier && !w_.blocked; }
    // Returns whether a group of the blocked warp can run again.
    bool wakes() {
        const auto& groups = w_.groups;
        if (std::any_of(groups.begin(), groups.end(), [&](const Group& g) { return is_able(g); })) return true;
        const bool all_wait = std::all_of(groups.begin(), groups.end(),
                                          [&](const Group& g) { return is_product_wait(g) && g.at == groups[0].at; });
        return all_wait && have_begun_products(w_, instruction(groups[0]));
    }
    [[noreturn]] void report_endless() {
        for (const Group& g : w_.groups) {
            const Instruction& i = code_[static_cast<size_t>(g.at)];
            if (g.waits && i.kind == Kind::poll)
                fail(w_, i, first_lane(g.lanes), "waits for ever: for " + what_is_missing(w_, i, guarded(i, g.lanes)));
            if (is_product_wait(g))
                fail(w_, i, first_lane(g.lanes), "waits for ever: for wgmma of the other warps of its warpgroup");
        }
        const Instruction& i = code_[static_cast<size_t>(w_.groups[0].at)];
        fail(w_, i, first_lane(w_.live), "waits for ever: too few threads come to this barrier");
    }
    // Runs the warp until all lanes have returned or wait at a barrier, or a poll blocks it.
    void run() {
        while (can_run()) run_some();
    }
    // Runs one group until it divides or waits; in random orders, for a few instructions at most.
    void run_some() {
        const int next = choose();
        if (next < 0)
            resolve();
        else
            run_group(static_cast<size_t>(next));
    }
    void divide() {
        if (!random_) return;
        for (size_t k = 0, n = w_.groups.size(); k < n; ++k) {
            const Lanes some = w_.groups[k].lanes & static_cast<Lanes>(splitmix64(w_.block->random));
            if (some == 0 || some == w_.groups[k].lanes) continue;
            w_.groups[k].lanes &= ~some;
            w_.groups.push_back({w_.groups[k].at, some, w_.groups[k].waits});
        }
    }

private:
    const Instruction& instruction(const Group& g) const { return code_[static_cast<size_t>(g.at)]; }
    // Returns whether the group waits at a wgmma.wait_group.
    bool is_product_wait(const Group& g) const { return g.waits && instruction(g).run == &wgmma_wait; }

    bool is_able(const Group& g) {
        if (!g.waits) return true;
        const Instruction& i = instruction(g);
        return i.kind == Kind::poll && is_ready(w_, i, guarded(i, g.lanes));
    }

    void merge() {
        auto& groups = w_.groups;
        if (groups.size() < 2) return;
        std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.at < b.at; });
        size_t last = 0;
        for (size_t k = 1; k < groups.size(); ++k) {
            if (groups[k].at == groups[last].at && groups[k].waits == groups[last].waits)
                groups[last].lanes |= groups[k].lanes;
            else
                groups[++last] = groups[k];
        }
        groups.resize(last + 1);
    }

    // Returns the index of the group to run next, or -1 if all groups wait.
    int choose() {
        if (!random_) {
            merge();
            for (size_t k = 0; k < w_.groups.size(); ++k)
                if (is_able(w_.groups[k])) return static_cast<int>(k);
            return -1;
        }
        std::vector<int> able;
        for (size_t k = 0; k < w_.groups.size(); ++k)
            if (is_able(w_.groups[k])) able.push_back(static_cast<int>(k));
        return able.empty() ? -1 : able[pick(*w_.block, able.size())];
    }

    // All groups wait: joins the lanes at the same instruction, and lets those pass for which all lanes that they need
    // are there. If all live lanes wait at a barrier, the warp does.
    void resolve() {
        merge();
        if (w_.groups.size() == 1 && code_[static_cast<size_t>(w_.groups[0].at)].kind == Kind::barrier) {
            w_.at_barrier = true;
            return;
        }
        bool any = false;
        for (size_t k = 0, n = w_.groups.size(); k < n; ++k) {
            const auto [at, lanes, waits] = w_.groups[k];
            const Instruction& i = code_[static_cast<size_t>(at)];
            w_.blocked |= i.kind == Kind::poll || (i.run == &wgmma_wait && !have_begun_products(w_, i));
            if (i.kind == Kind::barrier || i.kind == Kind::poll) continue;
            const Lanes passed = meet(i, lanes, lanes);
            if (passed == 0) continue;
            any = true;
            w_.groups[k] = {at + 1, passed};
            if (passed != lanes) w_.groups.push_back({at, lanes & ~passed, true});
        }
        if (any) w_.blocked = false;
        if (!any && !w_.blocked) report_deadlock();
        divide();
    }

    [[noreturn]] void report_deadlock() {
        std::string where;
        for (const Group& g : w_.groups) {
            const Instruction& i = code_[static_cast<size_t>(g.at)];
            where += fmt::format("{} lanes {:#x} at {} {}", where.empty() ? "" : ",", g.lanes, opcode_name(i.opcode),
                                 w_.program->place(i));
        }
        const Group& g = w_.groups[0];
        fail(w_, code_[static_cast<size_t>(g.at)], first_lane(g.lanes),
             fmt::format("lanes of a warp wait for each other at different instructions, and never meet:{}", where));
    }

    // Executes the instruction for those of `lanes` that find all lanes they need among them; returns these. `here`
    // adds the lanes at the instruction whose guard is false.
    Lanes meet(const Instruction& i, Lanes lanes, Lanes here) {
        if (i.kind == Kind::aligned) {
            if (lanes != here) fail(w_, i, first_lane(here & ~lanes), "only some lanes of the warp execute it");
            if (lanes != w_.live) return 0;
            if (lanes != kAllLanes && i.run != &cluster_arrive)  // of which returned lanes are no part
                fail(w_, i, first_lane(~lanes), "needs all 32 lanes, of which this one has returned");
            if (i.run == &wgmma_wait && !have_begun_products(w_, i)) return 0;
            i.run(w_, i, lanes);
            return lanes;
        }
        const Lanes* masks = w_.at<Lanes>(i.operands[i.count - 1]);
        Lanes passed = 0;
        for (Lanes lanes_left = lanes; lanes_left;) {
            const int lane = first_lane(lanes_left);
            const Lanes mask = masks[lane];
            const Lanes needed = mask & w_.live;  // "all non-exited threads" of the mask
            if (!(mask >> lane & 1)) fail(w_, i, lane, fmt::format("is not in its own mask {:#x}", mask));
            lanes_left &= ~(Lanes{1} << lane);
            if (needed & ~lanes) continue;
            for_lanes(needed, [&](int l) {
                if (masks[l] != mask)
                    fail(w_, i, l, fmt::format("has the mask {:#x}, but lane {} has {:#x}", masks[l], lane, mask));
            });
            lanes_left &= ~needed;
            passed |= needed;
        }
        for (Lanes lanes_left = passed; lanes_left; lanes_left &= ~masks[first_lane(lanes_left)])
            i.run(w_, i, masks[first_lane(lanes_left)] & w_.live);
        return passed;
    }

    Lanes guarded(const Instruction& i, Lanes lanes) {
        if (i.guard == kNone) return lanes;
        const Lanes p = *w_.at<Lanes>(static_cast<uint32_t>(i.guard));
        return lanes & (i.guard_not ? ~p : p);
    }

    static void count(Count& count, Lanes lanes) {
        ++count.warps;
        count.lanes += static_cast<uint64_t>(std::popcount(lanes));
    }

    // Counts a branch back. Returns whether other warps should run first, and then blocks this one until they have.
    bool lets_others_run(const Instruction& i) {
        if (!w_.block->launch->cooperative || ++w_.loops % kLoopsAtOnce != 0) return false;
        if (w_.loops > kMostLoops)
            fail(w_, i, first_lane(w_.live), fmt::format("waits for ever: it has branched back {} times", kMostLoops));
        w_.blocked = true;
        return true;
    }

    enum class Polled { ready, refused, waits };
    // Runs a poll unless it has to wait.
    Polled poll(const Instruction& i, Lanes lanes) {
        if (is_ready(w_, i, lanes)) {
            i.run(w_, i, lanes);
            w_.block->idle = 0;
            w_.refused = nullptr;
            return Polled::ready;
        }
        const bool tests = static_cast<Poll>(i.variant) == Poll::test_wait;
        const bool tries = static_cast<Poll>(i.variant) == Poll::try_wait;
        // try_wait may return false before the phase ends. It does so once, or at random, before it waits.
        const bool says_no = random_ ? pick(*w_.block, kPollOneIn) == 0 : w_.refused != &i;
        w_.refused = &i;
        if (!tests && !(tries && says_no)) return Polled::waits;
        i.run(w_, i, lanes);  // sets the predicate, to false for at least one lane
        if (++w_.block->idle > kMostIdlePolls)
            fail(w_, i, first_lane(lanes), "waits for ever: for " + what_is_missing(w_, i, lanes));
        return Polled::refused;
    }

    // Runs the group until it divides, waits or returns, or another group should run: when this group reaches another
    // group's instruction, branches back, or, in random orders, has run a few instructions.
    void run_group(size_t index) {
        int32_t at = w_.groups[index].at;
        const Lanes active = w_.groups[index].lanes;
        const bool alone = !random_ && w_.groups.size() == 1;
        int32_t limit = random_ ? at + 1 + static_cast<int32_t>(pick(*w_.block, kMostAtOnce)) : INT32_MAX;
        if (!random_)
            for (const Group& g : w_.groups)
                if (g.at > at) limit = std::min(limit, g.at);
        const auto leave = [&](bool waits = false) {
            w_.groups[index].at = at;
            w_.groups[index].waits = waits;
        };
        for (;;) {
            if (at >= limit) return leave();
            const Instruction& i = code_[static_cast<size_t>(at)];
            const Lanes lanes = guarded(i, active);
            if (w_.counts && (i.kind != Kind::poll || is_ready(w_, i, lanes))) count(w_.counts[at], lanes);
            if (i.kind == Kind::plain) {
                if (lanes) i.run(w_, i, lanes);
                ++at;
                continue;
            }
            if (lanes == 0) {
                ++at;
                continue;
            }
            switch (i.kind) {
                case Kind::branch:
                    if (lanes == active) {
                        const bool back = i.target <= at;
                        at = i.target;
                        if (back && (lets_others_run(i) || !alone)) return leave();
                        continue;
                    }
                    ++at;
                    leave();
                    w_.groups[index].lanes = active & ~lanes;
                    w_.groups.push_back({i.target, lanes});
                    return;
                case Kind::exit:
                    w_.live &= ~lanes;
                    ++at;
                    leave();
                    w_.groups[index].lanes = active & ~lanes;
                    if (lanes == active) w_.groups.erase(w_.groups.begin() + static_cast<std::ptrdiff_t>(index));
                    return;
                case Kind::barrier:
                    if (lanes != active)
                        fail(w_, i, first_lane(active & ~lanes), "only some lanes of the warp reach this barrier");
                    return leave(true);
                case Kind::collective:
                case Kind::aligned: {
                    const Lanes passed = random_ ? 0 : meet(i, lanes, active);
                    if (passed == lanes) {
                        ++at;
                        continue;
                    }
                    leave(true);
                    w_.groups[index].lanes = lanes & ~passed;
                    if (const Lanes others = active & ~w_.groups[index].lanes) w_.groups.push_back({at + 1, others});
                    return;
                }
                case Kind::poll: {
                    if (lanes != active) fail(w_, i, first_lane(active & ~lanes), "only some lanes of the warp wait");
                    const Polled polled = poll(i, lanes);
                    if (polled == Polled::waits) return leave(true);
                    ++at;
                    if (polled == Polled::ready) continue;
                    leave();
                    w_.blocked = true;  // until other warps have run
                    return;
                }
                case Kind::trap:
                    fail(w_, i, first_lane(lanes), "the kernel stops itself");
                case Kind::plain:
                    break;
            }
        }
    }

    Warp& w_;
    const std::vector<Instruction>& code_;
    const bool random_;
};

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
                     fmt::format("a barrier that only part of the block reaches: other warps are at the one of {}",
                                 block_.program->place(*barrier)));
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
