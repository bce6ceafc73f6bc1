// Bulk copies between device and shared memory, of tensors' tiles or of bytes ("cp.async.bulk",
// "cp.reduce.async.bulk").
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

// Into shared memory. Operands: [to], [map, {x, y, ...}], [mbarrier] or, for bytes, [to], [from], bytes, [mbarrier];
// then with product `multicast`, the ranks of the receivers.
namespace bulk {
inline constexpr uint8_t kTensor = 1;
inline constexpr uint8_t kMulticast = 2;
}  // namespace bulk

void bulk_load(Warp&, const Instruction&, Lanes);
// From shared memory: [map, {x, y, ...}], [from] or [to], [from], bytes. Instruction::vector is the AtomicOp of a
// reduction, Instruction::width the type (TensorMap::type) of the elements: of tensors the map has it.
void bulk_store(Warp&, const Instruction&, Lanes);
void bulk_commit(Warp&, const Instruction&, Lanes);
void bulk_wait(Warp&, const Instruction&, Lanes);  // offset: groups that may stay in flight

// Completes the k-th copy in flight.
void land(Block&, size_t k);

}  // namespace teon::gpusim
