// wgmma: matrix products by four warps, with operands in shared memory, which complete when the warps wait for them.
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

// Bits of Instruction::variant. Instruction::offset is N.
namespace product {
inline constexpr uint8_t kRegistersA = 1;
inline constexpr uint8_t kTransposedA = 2;
inline constexpr uint8_t kTransposedB = 4;
inline constexpr uint8_t kMinusA = 8;
inline constexpr uint8_t kMinusB = 16;
inline constexpr uint8_t kF16 = 32;
inline constexpr uint8_t kHalfSums = 64;  // D is f16, two elements to a register
inline constexpr uint8_t kFp8 = 128;      // A and B are e4m3 or, with the bits below, e5m2, and never transposed
inline constexpr uint8_t kE5m2A = kTransposedA;
inline constexpr uint8_t kE5m2B = kTransposedB;
inline int results(int64_t N, uint8_t variant) { return static_cast<int>(variant & kHalfSums ? N / 4 : N / 2); }
}  // namespace product

void wgmma_fence(Warp&, const Instruction&, Lanes);
void wgmma_product(Warp&, const Instruction&, Lanes);  // D, D, A, B (registers or descriptors), scale-d
void wgmma_commit(Warp&, const Instruction&, Lanes);
void wgmma_wait(Warp&, const Instruction&, Lanes);  // offset: groups that may stay in flight
// Returns whether all warps of the warpgroup have begun the products that this wgmma.wait_group waits for.
bool have_begun_products(const Warp& w, const Instruction& i);

// Checks a program whose operands are still indices of registers: no other instruction touches the registers of a wgmma
// in flight, and wgmma.fence separates other writes to a register from a wgmma that reads it. Throws Error naming the
// instruction.
void check_product_registers(const Program& program, size_t registers, const std::vector<bool>& is_constant);

}  // namespace teon::gpusim
