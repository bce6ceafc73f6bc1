// How warps of a block wait for each other and for bulk copies without all of them meeting: mbarriers, named barriers,
// copies of tensors, and registers that warps hand on (setmaxnreg).
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

// What a poll (Kind::poll) waits for.
enum class Poll : uint8_t { try_wait, test_wait, registers };
bool is_ready(Warp&, const Instruction&, Lanes);
// Why it is not.
std::string what_is_missing(Warp&, const Instruction&, Lanes);

void mbarrier_init(Warp&, const Instruction&, Lanes);
void mbarrier_inval(Warp&, const Instruction&, Lanes);
void mbarrier_arrive(Warp&, const Instruction&, Lanes);  // variant: expect_tx
void mbarrier_wait(Warp&, const Instruction&, Lanes);    // sets the predicate; what was done before is then seen
void bulk_copy(Warp&, const Instruction&, Lanes);
void fence_proxy(Warp&, const Instruction&, Lanes);
void barrier_arrive(Warp&, const Instruction&, Lanes);
void set_max_registers(Warp&, const Instruction&, Lanes);

// The k-th copy that is under way ends.
void land(Block&, size_t k);
// Lets warps go on that wait at a named barrier where all have arrived; whether there was one.
bool pass_named_barriers(Block&);

}  // namespace teon::gpusim
