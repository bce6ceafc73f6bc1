// "Parallel Synchronization and Communication Instructions: mbarrier, bar", "Data Movement and Conversion Instructions:
// cp.async.bulk.tensor", "setmaxnreg", "membar / fence".
#include "gpusim/mbarrier.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "gpusim/cluster.h"
#include "gpusim/counts.h"
#include "gpusim/memory.h"
#include "gpusim/tensor_map.h"

namespace teon::gpusim {

namespace {

constexpr uint32_t kMostArrivals = (1u << 20) - 1;
constexpr int64_t kMostTransactions = (1 << 20) - 1;

uint32_t address_of(Warp& w, const Instruction& i, int operand, int lane) {
    return w.operand<uint32_t>(i, operand)[lane] + static_cast<uint32_t>(i.offset);
}

// Ends the phase if all have arrived.
void advance(Mbarrier& m) {
    if (m.pending || m.transactions) return;
    m.pending = m.expected;
    m.released = m.arrived;
    ++m.phase;
}

void add_transactions(Warp& w, const Instruction& i, int lane, Mbarrier& m, int64_t bytes) {
    m.transactions += bytes;
    if (std::abs(m.transactions) > kMostTransactions)
        fail(w, i, lane, "{} bytes outstanding at an mbarrier; at most {}", m.transactions, kMostTransactions);
}

// Returns whether the phase that a wait identifies has ended: by its parity (operand 2), the current or the previous
// one, or by the state that an arrival returned, which here is the number of the phase.
bool has_ended(Warp& w, const Instruction& i, int lane, const Mbarrier& m) {
    if (i.sign) {
        const uint64_t state = w.operand<uint64_t>(i, 2)[lane];
        if (state > m.phase || state + 1 < m.phase)
            fail(w, i, lane, "the state {:#x} is of neither the current nor the previous phase", state);
        return state != m.phase;
    }
    const uint32_t parity = w.operand<uint32_t>(i, 2)[lane];
    if (parity > 1) fail(w, i, lane, "the parity {} is neither 0 nor 1", parity);
    return (m.phase & 1) != parity;
}

int register_pool(const Warp& w) { return w.program->registers * static_cast<int>(w.block->launch->block.count()); }

}  // namespace

// The mbarrier may be of another block of the cluster.
Mbarrier& find_mbarrier(Warp& w, const Instruction& i, int lane, uint64_t address) {
    Block& owner = block_of_address(w, i, lane, address);
    const auto at = static_cast<uint32_t>(address);
    const auto it = owner.mbarriers.find(at);
    if (it == owner.mbarriers.end()) fail(w, i, lane, "there is no mbarrier at byte {} of shared memory", at);
    const bool is_seen = &owner == w.block
                             ? owner.shared.sees(w.clock, w.index, lane, at, kMbarrierBytes)
                             : owner.shared.sees_remotely(w.seen_of[owner.rank], at, kMbarrierBytes, false);
    if (!is_seen) fail(w, i, lane, owner.shared.wrong());
    return it->second;
}

void complete_transactions(Warp& w, const Instruction& i, int lane, Mbarrier& m, uint32_t bytes) {
    add_transactions(w, i, lane, m, -int64_t{bytes});
    advance(m);
}

void mbarrier_init(Warp& w, const Instruction& i, Lanes lanes) {  // [a], count
    for_lanes(lanes, [&](int l) {
        const uint32_t a = address_of(w, i, 0, l);
        const uint32_t count = w.operand<uint32_t>(i, 1)[l];
        if (count == 0 || count > kMostArrivals) fail(w, i, l, "{} arrivals; it must be 1 to {}", count, kMostArrivals);
        constexpr uint8_t kNothing[kMbarrierBytes] = {};
        std::memcpy(shared_for_write(w, i, l, a, kMbarrierBytes, kNothing), kNothing, kMbarrierBytes);
        Mbarrier m;
        m.expected = m.pending = count;
        m.made_by = &i;
        const auto [it, is_new] = w.block->mbarriers.emplace(a, m);
        if (is_new) return;
        // In published kernels, all lanes of a warp make it.
        const Mbarrier& other = it->second;
        const bool is_unused =
            other.made_by == &i && other.phase == 0 && other.pending == other.expected && other.transactions == 0;
        if (!is_unused || other.expected != count) fail(w, i, l, "there is an mbarrier already");
        note(w, i, l, "several threads make the same mbarrier");
    });
}

void mbarrier_inval(Warp& w, const Instruction& i, Lanes lanes) {
    for_lanes(lanes, [&](int l) {
        const uint32_t a = address_of(w, i, 0, l);
        find_mbarrier(w, i, l, a);
        shared_for_write(w, i, l, a, kMbarrierBytes, nullptr);
        w.block->mbarriers.erase(a);
    });
}

void mbarrier_arrive(Warp& w, const Instruction& i, Lanes lanes) {  // [state,] [a], count or bytes
    const int k = i.destinations;
    const Views views = release(w, lanes);
    for_lanes(lanes, [&](int l) {
        if (is_of_ended_block(w, address_of(w, i, k, l)))
            return alarm(w, i, l, "arrives at an mbarrier of a block of the cluster that has ended");
        Mbarrier& m = find_mbarrier(w, i, l, address_of(w, i, k, l));
        uint64_t address = address_of(w, i, k, l);
        keep_alive(block_of_address(w, i, l, address), w, i, l, true);
        if (k) w.operand<uint64_t>(i, 0)[l] = m.phase;
        const uint32_t operand = w.operand<uint32_t>(i, k + 1)[l];
        const uint32_t count = i.variant ? 1 : operand;
        if (i.variant) add_transactions(w, i, l, m, operand);
        if (count > m.pending)
            fail(w, i, l, "{} arrivals at an mbarrier that expects {} more of {} in this phase", count, m.pending,
                 m.expected);
        m.pending -= count;
        merge(m.arrived, views);
        advance(m);
    });
}

void mbarrier_expect(Warp& w, const Instruction& i, Lanes lanes) {  // [a], bytes
    for_lanes(lanes, [&](int l) {
        add_transactions(w, i, l, find_mbarrier(w, i, l, address_of(w, i, 0, l)), w.operand<uint32_t>(i, 1)[l]);
    });
}

void mbarrier_wait(Warp& w, const Instruction& i, Lanes lanes) {  // p, [a], parity
    Lanes ended = 0;
    for_lanes(lanes, [&](int l) {
        const Mbarrier& m = find_mbarrier(w, i, l, address_of(w, i, 1, l));
        if (!has_ended(w, i, l, m)) return;
        acquire(w, m.released);
        ended |= Lanes{1} << l;
    });
    Lanes& p = *w.operand<Lanes>(i, 0);
    p = (p & ~lanes) | ended;
}

bool is_ready(Warp& w, const Instruction& i, Lanes lanes) {
    if (static_cast<Poll>(i.variant) == Poll::registers) {
        int others = 0;
        for (const Warp& other : w.block->warps) others += &other != &w ? 32 * other.registers_held : 0;
        return others + 32 * static_cast<int>(i.offset) <= register_pool(w);
    }
    if (static_cast<Poll>(i.variant) == Poll::cluster)  // without an arrival, cluster_wait says what is wrong
        return w.cluster_arrivals == w.cluster_passes || all_have_arrived(w);
    bool ready = true;
    for_lanes(lanes, [&](int l) { ready &= has_ended(w, i, l, find_mbarrier(w, i, l, address_of(w, i, 1, l))); });
    return ready;
}

std::string what_is_missing(Warp& w, const Instruction& i, Lanes lanes) {
    if (static_cast<Poll>(i.variant) == Poll::registers)
        return fmt::format("{} registers a thread, of which the block has {}", i.offset, register_pool(w));
    if (static_cast<Poll>(i.variant) == Poll::cluster)
        return "threads of the cluster, which have not come to its barrier";
    const int lane = first_lane(lanes);
    const uint32_t a = address_of(w, i, 1, lane);
    const Mbarrier& m = find_mbarrier(w, i, lane, a);
    return fmt::format(
        "phase {} of the mbarrier at byte {} of shared memory, which lacks {} of {} arrivals and {} bytes", m.phase, a,
        m.pending, m.expected, m.transactions);
}

void fence_proxy(Warp& w, const Instruction&, Lanes) { w.block->shared.fence_proxy(w.clock, w.index); }

void fence_mbarriers(Warp& w, const Instruction&, Lanes) {
    for (const auto& [at, m] : w.block->mbarriers) w.block->shared.fence_stores(w.index, at, kMbarrierBytes);
}

// ---- named barriers -------------------------------------------------------------------------------------------------

namespace {

// The threads for which a barrier waits; 0: those of all warps of the block.
uint32_t threads_at_barrier(Warp& w, const Instruction& i) {
    const uint32_t count = *w.operand<uint32_t>(i, 1);
    return count ? count : 32 * static_cast<uint32_t>(w.block->warps.size());
}

}  // namespace

void barrier_arrive(Warp& w, const Instruction& i, Lanes) {  // a, b
    const uint32_t id = *w.operand<uint32_t>(i, 0);
    const uint32_t count = threads_at_barrier(w, i);
    if (id >= w.block->named.size()) fail(w, i, 0, "barrier {} of 16", id);
    NamedBarrier& b = w.block->named[id];
    if (b.arrived && b.count != count) fail(w, i, 0, "{} threads at barrier {}, but {} for others", count, id, b.count);
    b.count = count;
    b.arrived += 32;
    if (b.arrived > b.count) fail(w, i, 0, "{} threads arrive at barrier {} of {}", b.arrived, id, count);
    merge(b.view, release(w, kAllLanes));
}

bool pass_named_barriers(Block& block) {
    bool any = false;
    for (uint32_t id = 0; id < block.named.size(); ++id) {
        NamedBarrier& b = block.named[id];
        std::vector<Warp*> here;
        for (Warp& w : block.warps) {
            if (!w.live || !w.at_barrier) continue;
            const Instruction& i = w.program->code[static_cast<size_t>(w.groups[0].at)];
            if (i.count == 0 || *w.operand<uint32_t>(i, 0) != id) continue;
            const uint32_t count = threads_at_barrier(w, i);
            if ((b.arrived || !here.empty()) && b.count != count)
                fail(w, i, 0, "{} threads at barrier {}, but {} for others", count, id, b.count);
            b.count = count;
            here.push_back(&w);
            if (b.arrived + 32 * here.size() > count)
                fail(w, i, 0, "{} threads at barrier {} of {}", b.arrived + 32 * here.size(), id, count);
        }
        if (b.count == 0 || b.arrived + 32 * here.size() != b.count) continue;
        for (Warp* w : here) merge(b.view, release(*w, kAllLanes));
        for (Warp* w : here) {
            acquire(*w, b.view);
            w->groups[0].waits = w->at_barrier = false;
            ++w->groups[0].at;
        }
        b = {};
        any = true;
    }
    return any;
}

// ---- registers ------------------------------------------------------------------------------------------------------

void set_max_registers(Warp& w, const Instruction& i, Lanes) {
    const int to = static_cast<int>(i.offset);
    if (i.kind == Kind::poll ? to < w.registers_held : to > w.registers_held)
        fail(w, i, 0, "a thread holds {} registers already", w.registers_held);
    w.registers_held = to;
}

}  // namespace teon::gpusim
