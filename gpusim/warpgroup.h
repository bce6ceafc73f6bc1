// wgmma: products of four warps, whose operands are in shared memory, and which end when the warps wait for them.
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

// Bits of Instruction::variant; `offset` is N.
namespace product {
inline constexpr uint8_t kRegistersA = 1, kTransposedA = 2, kTransposedB = 4, kMinusA = 8, kMinusB = 16, kF16 = 32;
}

void wgmma_fence(Warp&, const Instruction&, Lanes);
void wgmma_product(Warp&, const Instruction&, Lanes);  // D, D, A, B, whether D counts: registers or descriptors
void wgmma_commit(Warp&, const Instruction&, Lanes);
void wgmma_wait(Warp&, const Instruction&, Lanes);  // offset: groups that may be under way

// Of a program whose operands are still indices of registers: those of a wgmma that is under way are touched by nothing
// else, and what others have written wgmma reads after wgmma.fence. Throws Error naming the instruction.
void check_product_registers(const Program& program, size_t registers, const std::vector<bool>& is_constant);

}  // namespace teon::gpusim
