#include "gpusim/warp_runner.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "gpusim/cluster.h"
#include "gpusim/counts.h"
#include "gpusim/mbarrier.h"
#include "gpusim/opcodes.h"

namespace teon::gpusim {

namespace {

// Random orders: the maximum of instructions that a group runs at a time; one of kPollOneIn polls that may wait returns
// false instead.
constexpr uint64_t kMostAtOnce = 64;
constexpr uint64_t kPollOneIn = 4;
constexpr uint64_t kMostIdlePolls = 1000000;
// Cooperative launches: a warp lets others run after this many branches back, as it may wait for another block; and it
// waits for ever if it branches back this often.
constexpr uint64_t kLoopsAtOnce = 32;
constexpr uint64_t kMostLoops = 10'000'000;

void count(Count& count, Lanes lanes) {
    ++count.warps;
    count.lanes += static_cast<uint64_t>(std::popcount(lanes));
}

}  // namespace

bool WarpRunner::wakes() {
    const auto& groups = w_.groups;
    if (std::any_of(groups.begin(), groups.end(), [&](const Group& g) { return is_able(g); })) return true;
    const bool all_wait = std::all_of(groups.begin(), groups.end(),
                                      [&](const Group& g) { return is_product_wait(g) && g.at == groups[0].at; });
    return all_wait && have_begun_products(w_, instruction(groups[0]));
}

void WarpRunner::report_endless() {
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

void WarpRunner::run_some() {
    const int next = choose();
    if (next < 0)
        resolve();
    else
        run_group(static_cast<size_t>(next));
}

void WarpRunner::divide() {
    if (!random_) return;
    for (size_t k = 0, n = w_.groups.size(); k < n; ++k) {
        const Lanes some = w_.groups[k].lanes & static_cast<Lanes>(splitmix64(w_.block->random));
        if (some == 0 || some == w_.groups[k].lanes) continue;
        w_.groups[k].lanes &= ~some;
        w_.groups.push_back({w_.groups[k].at, some, w_.groups[k].waits});
    }
}

bool WarpRunner::is_able(const Group& g) {
    if (!g.waits) return true;
    const Instruction& i = instruction(g);
    return i.kind == Kind::poll && is_ready(w_, i, guarded(i, g.lanes));
}

void WarpRunner::merge() {
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

int WarpRunner::choose() {
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

void WarpRunner::resolve() {
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

void WarpRunner::report_deadlock() {
    std::string where;
    for (const Group& g : w_.groups) {
        const Instruction& i = code_[static_cast<size_t>(g.at)];
        where += fmt::format("{} lanes {:#x} at {} {}", where.empty() ? "" : ",", g.lanes, opcode_name(i.opcode),
                             w_.program->place(i));
    }
    const Group& g = w_.groups[0];
    fail(w_, code_[static_cast<size_t>(g.at)], first_lane(g.lanes),
         "lanes of a warp wait for each other at different instructions, and never meet:{}", where);
}

Lanes WarpRunner::meet(const Instruction& i, Lanes lanes, Lanes here) {
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
        if (!(mask >> lane & 1)) fail(w_, i, lane, "is not in its own mask {:#x}", mask);
        lanes_left &= ~(Lanes{1} << lane);
        if (needed & ~lanes) continue;
        for_lanes(needed, [&](int l) {
            if (masks[l] != mask) fail(w_, i, l, "has the mask {:#x}, but lane {} has {:#x}", masks[l], lane, mask);
        });
        lanes_left &= ~needed;
        passed |= needed;
    }
    for (Lanes lanes_left = passed; lanes_left; lanes_left &= ~masks[first_lane(lanes_left)])
        i.run(w_, i, masks[first_lane(lanes_left)] & w_.live);
    return passed;
}

Lanes WarpRunner::guarded(const Instruction& i, Lanes lanes) {
    if (i.guard == kNone) return lanes;
    const Lanes p = *w_.at<Lanes>(static_cast<uint32_t>(i.guard));
    return lanes & (i.guard_not ? ~p : p);
}

bool WarpRunner::lets_others_run(const Instruction& i) {
    if (!w_.block->launch->cooperative || ++w_.loops % kLoopsAtOnce != 0) return false;
    if (w_.loops > kMostLoops)
        fail(w_, i, first_lane(w_.live), "waits for ever: it has branched back {} times", kMostLoops);
    w_.blocked = true;
    return true;
}

WarpRunner::Polled WarpRunner::poll(const Instruction& i, Lanes lanes) {
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

bool WarpRunner::run_control(size_t index, const Instruction& i, Lanes lanes) {
    const auto [at, active, waited] = w_.groups[index];
    const auto continue_at = [&](int32_t next, Lanes remaining, bool waits = false) {
        w_.groups[index] = {next, remaining, waits};
    };
    const bool all = lanes == active;
    switch (i.kind) {
        case Kind::branch:
            continue_at(all ? i.target : at + 1, all ? active : active & ~lanes);
            if (all) {
                const bool back = i.target <= at;
                const bool alone = !random_ && w_.groups.size() == 1;
                return !back || (!lets_others_run(i) && alone);
            }
            w_.groups.push_back({i.target, lanes});
            return false;
        case Kind::exit:
            w_.live &= ~lanes;
            continue_at(at + 1, active & ~lanes);
            if (all) w_.groups.erase(w_.groups.begin() + static_cast<std::ptrdiff_t>(index));
            return false;
        case Kind::barrier:
            if (!all) fail(w_, i, first_lane(active & ~lanes), "only some lanes of the warp reach this barrier");
            continue_at(at, active, /*waits=*/true);
            return false;
        case Kind::collective:
        case Kind::aligned: {
            const Lanes passed = random_ ? 0 : meet(i, lanes, active);
            const Lanes waiting = lanes & ~passed;
            if (waiting == 0) {
                continue_at(at + 1, active);
                return true;
            }
            continue_at(at, waiting, /*waits=*/true);
            if (const Lanes others = active & ~waiting) w_.groups.push_back({at + 1, others});
            return false;
        }
        case Kind::poll: {
            if (!all) fail(w_, i, first_lane(active & ~lanes), "only some lanes of the warp wait");
            const Polled polled = poll(i, lanes);
            const bool waits = polled == Polled::waits;
            continue_at(waits ? at : at + 1, active, waits);
            if (polled == Polled::refused) w_.blocked = true;  // until other warps have run
            return polled == Polled::ready;
        }
        case Kind::trap:
            fail(w_, i, first_lane(lanes), "the kernel stops itself");
        case Kind::plain:
            break;
    }
    return true;
}

void WarpRunner::run_group(size_t index) {
    int32_t at = w_.groups[index].at;
    const Lanes active = w_.groups[index].lanes;
    w_.groups[index].waits = false;
    int32_t limit = random_ ? at + 1 + static_cast<int32_t>(pick(*w_.block, kMostAtOnce)) : INT32_MAX;
    if (!random_)
        for (const Group& g : w_.groups)
            if (g.at > at) limit = std::min(limit, g.at);
    while (at < limit) {
        const Instruction& i = code_[static_cast<size_t>(at)];
        const Lanes lanes = guarded(i, active);
        if (w_.counts && (i.kind != Kind::poll || is_ready(w_, i, lanes))) count(w_.counts[at], lanes);
        if (lanes && i.kind != Kind::plain) {
            w_.groups[index].at = at;
            if (!run_control(index, i, lanes)) return;
            at = w_.groups[index].at;
            continue;
        }
        if (lanes) i.run(w_, i, lanes);
        ++at;
    }
    w_.groups[index].at = at;
}

}  // namespace teon::gpusim
