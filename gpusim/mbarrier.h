// Synchronization of some warps of a block with each other and with bulk copies: mbarriers, named barriers, and
// registers that warps hand over (setmaxnreg).
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

// What a poll (Kind::poll) waits for: a phase of an mbarrier, free registers, or the barrier of the cluster.
enum class Poll : uint8_t { try_wait, test_wait, registers, cluster };
bool is_ready(Warp&, const Instruction&, Lanes);
// Describes what a poll that is not ready waits for.
std::string what_is_missing(Warp&, const Instruction&, Lanes);

void mbarrier_init(Warp&, const Instruction&, Lanes);
void mbarrier_inval(Warp&, const Instruction&, Lanes);
void mbarrier_arrive(Warp&, const Instruction&, Lanes);  // variant: expect_tx
void mbarrier_expect(Warp&, const Instruction&, Lanes);
void mbarrier_wait(Warp&, const Instruction&, Lanes);  // sets the predicate; if true, acquires the arrivals' releases
void fence_proxy(Warp&, const Instruction&, Lanes);
void fence_mbarriers(Warp&, const Instruction&, Lanes);  // for mbarrier.init alone
void barrier_arrive(Warp&, const Instruction&, Lanes);
void set_max_registers(Warp&, const Instruction&, Lanes);

// For bulk copies: the mbarrier of the block at `address`, which the thread must see; and bytes that it expects, or, if
// negative, that have come, with what the copy's thread has seen.
inline constexpr uint32_t kMbarrierBytes = 8;
Mbarrier& find_mbarrier(Warp& w, const Instruction& i, int lane, uint64_t address);
void complete_transactions(Warp& w, const Instruction& i, int lane, Mbarrier& m, uint32_t bytes);

// Lets warps pass the named barriers at which all threads have arrived. Returns whether there was such a barrier.
bool pass_named_barriers(Block&);

}  // namespace teon::gpusim
