#include "gpusim/cluster.h"

#include <algorithm>

#include "base/check.h"

namespace teon::gpusim {

namespace {

const View kNothingSeen{};

// What the warp has seen of the block with this rank.
const View& seen_of(const Warp& w, uint32_t rank) {
    if (rank == w.block->rank) return w.clock.seen;
    return rank < w.seen_of.size() ? w.seen_of[rank] : kNothingSeen;
}

void refuse_race(Warp& w, const Instruction& i, int lane, uint32_t at, const char* now, const RemoteAccess& before) {
    fail(w, i, lane,
         "a race: {} byte {} of shared memory, which warp {} of block {} of the cluster {} with no barrier "
         "between",
         now, at, before.warp, before.rank, before.writes ? "wrote" : "read");
}

// Checks an access to the memory of `owner` against those that other blocks have made.
void check_others(Warp& w, const Instruction& i, int lane, const Block& owner, uint32_t at, uint32_t bytes,
                  bool writes) {
    for (uint32_t unit = at / kRemoteUnit; unit <= (at + bytes - 1) / kRemoteUnit; ++unit) {
        const auto it = owner.remote.find(unit);
        if (it == owner.remote.end()) continue;
        for (const RemoteAccess& before : it->second) {
            if (!writes && !before.writes) continue;
            if (before.rank == w.block->rank && before.warp == w.index) continue;
            if (seen_of(w, before.rank)[static_cast<size_t>(before.warp)] > before.time) continue;
            refuse_race(w, i, lane, at, writes ? "writes" : "reads", before);
        }
    }
}

}  // namespace

void merge(Views& into, const Views& more) {
    if (more.of_ranks.empty()) return merge(into.of_block, more.of_block);
    into.of_ranks.resize(more.of_ranks.size());
    for (size_t rank = 0; rank < more.of_ranks.size(); ++rank) merge(into.of_ranks[rank], more.of_ranks[rank]);
}

Views release(Warp& w, Lanes lanes) {
    const View released = w.block->shared.release(w.clock, w.index, lanes);
    if (!w.block->cluster) return {released};
    Views views = {{}, w.seen_of};
    views.of_ranks.resize(w.block->cluster->blocks.size());
    merge(views.of_ranks[w.block->rank], released);
    return views;
}

void acquire(Warp& w, const Views& views) {
    if (views.of_ranks.empty()) return merge(w.clock.seen, views.of_block);
    merge(w.clock.seen, views.of_ranks[w.block->rank]);
    w.seen_of.resize(views.of_ranks.size());
    for (size_t rank = 0; rank < views.of_ranks.size(); ++rank) merge(w.seen_of[rank], views.of_ranks[rank]);
}

Block& block_of_address(Warp& w, const Instruction& i, int lane, uint64_t& address) {
    if (address < kOwnShared) return *w.block;
    const uint64_t rank = (address >> kRankShift) - 1;
    const size_t ranks = w.block->cluster ? w.block->cluster->blocks.size() : 1;
    if (rank >= ranks) fail(w, i, lane, "block {} of a cluster of {}", rank, ranks);
    address &= kOwnShared - 1;
    if (rank == w.block->rank) return *w.block;
    Block& block = *w.block->cluster->blocks[rank];
    if (block.has_ended) fail(w, i, lane, "block {} of the cluster has ended", rank);
    return block;
}

bool is_of_ended_block(const Warp& w, uint64_t address) {
    const uint64_t rank = (address >> kRankShift) - 1;
    return address >= kOwnShared && w.block->cluster && rank < w.block->cluster->blocks.size() &&
           w.block->cluster->blocks[rank]->has_ended;
}

uint8_t* remote_memory(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes, bool writes) {
    Block& owner = block_of_address(w, i, lane, address);
    const auto at = static_cast<uint32_t>(address);
    if (at + uint64_t{bytes} > owner.shared.size())
        fail(w, i, lane, "{} bytes at byte {} of the shared memory of block {}, which has {}", bytes, at, owner.rank,
             owner.shared.size());
    if (at % bytes != 0) fail(w, i, lane, "the address {:#x} is not a multiple of {} bytes", at, bytes);
    check_others(w, i, lane, owner, at, bytes, writes);
    if (!owner.shared.sees_remotely(seen_of(w, owner.rank), at, bytes, writes)) fail(w, i, lane, owner.shared.wrong());
    w.clock.touched = true;
    keep_alive(owner, w, i, lane, false);
    for (uint32_t unit = at / kRemoteUnit; unit <= (at + bytes - 1) / kRemoteUnit; ++unit) {
        auto& accesses = owner.remote[unit];
        std::erase_if(accesses, [&](const RemoteAccess& a) {
            return a.rank == w.block->rank && a.warp == w.index && a.writes == writes;
        });
        accesses.push_back({w.block->rank, w.index, w.clock.time, writes});
    }
    if (writes) owner.shared.write_remotely(at, bytes);
    return owner.shared.data() + at;
}

void keep_alive(Block& owner, Warp& w, const Instruction& i, int lane, bool arrives) {
    // An arrival is seen by those who wait for it; an access by those who wait for a later arrival.
    if (&owner != w.block) owner.last_remote[&w] = {&w, &i, lane, w.clock.time - arrives};
}

// Had the block ended earlier, as it may in another order, the access would have been to the memory of an ended block.
void check_end(Block& block) {
    for (const auto& [warp, last] : block.last_remote) {
        const uint32_t rank = warp->block->rank;
        const auto index = static_cast<size_t>(warp->index);
        const auto time = last.time;  // not `last`: clang cannot capture a structured binding
        const bool is_awaited = std::ranges::any_of(block.warps, [&](const Warp& own_warp) {
            return rank < own_warp.seen_of.size() && own_warp.seen_of[rank][index] > time;
        });
        if (!is_awaited)
            alarm(
                *last.warp, *last.instruction, last.lane,
                fmt::format("uses the memory of block {} of the cluster, which may have ended: it does not wait for it",
                            block.rank));
    }
}

void check_against_remote(Warp& w, const Instruction& i, int lane, uint32_t at, uint32_t bytes, bool writes) {
    if (!w.block->remote.empty()) check_others(w, i, lane, *w.block, at, bytes, writes);
}

void map_address(Warp& w, const Instruction& i, Lanes lanes) {
    const auto map = [&]<typename T>(T* d) {
        const T* a = w.operand<T>(i, 1);
        const uint32_t* rank = w.operand<uint32_t>(i, 2);
        for_lanes(lanes, [&](int l) {
            const uint64_t window = sizeof(T) == 8 ? kSharedWindow : 0;
            const uint64_t at = (a[l] - window) & (kOwnShared - 1);
            d[l] = static_cast<T>(window + ((uint64_t{rank[l]} + 1) << kRankShift) + at);
        });
    };
    i.width == 8 ? map(w.operand<uint64_t>(i, 0)) : map(w.operand<uint32_t>(i, 0));
}

void rank_of_address(Warp& w, const Instruction& i, Lanes lanes) {
    uint32_t* d = w.operand<uint32_t>(i, 0);
    for_lanes(lanes, [&](int l) {
        const uint64_t address =
            i.width == 8 ? w.operand<uint64_t>(i, 1)[l] - kSharedWindow : w.operand<uint32_t>(i, 1)[l];
        d[l] = address < kOwnShared ? w.block->rank : static_cast<uint32_t>(address >> kRankShift) - 1;
    });
}

// Whole warps arrive: code by nvcc and CUTLASS makes its barriers so.
void cluster_arrive(Warp& w, const Instruction& i, Lanes lanes) {
    if (w.cluster_arrivals != w.cluster_passes)
        fail(w, i, first_lane(lanes), "arrives at the barrier of the cluster twice without waiting for it");
    merge(w.block->at_cluster_barrier[w.cluster_arrivals % 2], release(w, lanes));
    ++w.cluster_arrivals;
}

bool all_have_arrived(const Warp& w) {
    const auto has_arrived = [&](const Warp& other) {
        return !other.live || other.cluster_arrivals > w.cluster_passes;
    };
    if (!w.block->cluster) return std::ranges::all_of(w.block->warps, has_arrived);
    return std::ranges::all_of(w.block->cluster->blocks,
                               [&](const Block* b) { return std::ranges::all_of(b->warps, has_arrived); });
}

void cluster_wait(Warp& w, const Instruction& i, Lanes lanes) {
    if (w.cluster_arrivals == w.cluster_passes)
        fail(w, i, first_lane(lanes), "waits for the barrier of the cluster without having arrived");
    acquire(w, w.block->at_cluster_barrier[w.cluster_passes % 2]);
    w.cluster_passed |= lanes;
    if ((w.live & ~w.cluster_passed) != 0) return;
    w.cluster_passed = 0;
    ++w.cluster_passes;
}

}  // namespace teon::gpusim
