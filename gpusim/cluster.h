// Clusters: blocks that reach each other's shared memory, mbarriers and a barrier of their own ("Cluster of Cooperative
// Thread Arrays", "barrier.cluster", "mapa").
#pragma once

#include <vector>

#include "gpusim/warp.h"

namespace teon::gpusim {

struct Cluster {
    std::vector<Block*> blocks;  // by rank
    Extent3 index;               // in the grid of clusters
};

void merge(Views& into, const Views& more);
// Records the arrival of lanes at a point of synchronization; returns what those who wait for it acquire.
Views release(Warp& w, Lanes lanes);
void acquire(Warp& w, const Views& views);

// An address of shared memory in the window of the cluster: the rank plus one in the bits from kRankShift on. Addresses
// below are the own block's.
inline constexpr int kRankShift = 24;
inline constexpr uint64_t kOwnShared = uint64_t{1} << kRankShift;

// Returns the block that the address names, and reduces the address to its shared memory.
Block& block_of_address(Warp& w, const Instruction& i, int lane, uint64_t& address);
// Whether the address is in the memory of a block that has ended.
bool is_of_ended_block(const Warp& w, uint64_t address);
// An access to the memory of another block of the cluster: checks it and returns its location. `values`: what a store
// will write.
uint8_t* remote_memory(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes, bool writes);
// Records that the block must not end before this access or arrival; checks it when the block ends.
void keep_alive(Block& owner, Warp& w, const Instruction& i, int lane, bool arrives);
void check_end(Block& block);
// An access to the own memory: checks it against those of other blocks.
void check_against_remote(Warp& w, const Instruction& i, int lane, uint32_t at, uint32_t bytes, bool writes);

void map_address(Warp&, const Instruction&, Lanes);      // mapa: d, a, rank
void rank_of_address(Warp&, const Instruction&, Lanes);  // getctarank: d, a
void cluster_arrive(Warp&, const Instruction&, Lanes);
void cluster_wait(Warp&, const Instruction&, Lanes);
bool all_have_arrived(const Warp& w);  // at the phase of the cluster's barrier for which the warp waits

}  // namespace teon::gpusim
