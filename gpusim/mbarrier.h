// Synchronization of some warps of a block with each other and with bulk copies: mbarriers, named barriers, copies of
// tensor tiles, and registers that warps hand over (setmaxnreg).
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

// What a poll (Kind::poll) waits for: a phase of an mbarrier, or free registers.
enum class Poll : uint8_t { try_wait, test_wait, registers };
bool is_ready(Warp&, const Instruction&, Lanes);
// Describes what a poll that is not ready waits for.
std::string what_is_missing(Warp&, const Instruction&, Lanes);

void mbarrier_init(Warp&, const Instruction&, Lanes);
void mbarrier_inval(Warp&, const Instruction&, Lanes);
void mbarrier_arrive(Warp&, const Instruction&, Lanes);  // variant: expect_tx
void mbarrier_wait(Warp&, const Instruction&, Lanes);    // sets the predicate; if true, acquires the arrivals' releases
void bulk_copy(Warp&, const Instruction&, Lanes);
void fence_proxy(Warp&, const Instruction&, Lanes);
void barrier_arrive(Warp&, const Instruction&, Lanes);
void set_max_registers(Warp&, const Instruction&, Lanes);

// Completes the k-th copy in flight.
void land(Block&, size_t k);
// Lets warps pass the named barriers at which all threads have arrived. Returns whether there was such a barrier.
bool pass_named_barriers(Block&);

}  // namespace teon::gpusim
