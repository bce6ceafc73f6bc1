// Instructions that touch memory, and the checked ways to it.
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

enum class AtomicOp : uint8_t { add, min, max, and_, or_, xor_, exch, cas, inc, dec };

void load(Warp&, const Instruction&, Lanes);
void store(Warp&, const Instruction&, Lanes);
void load_parameter(Warp&, const Instruction&, Lanes);
void atomic(Warp&, const Instruction&, Lanes);
void load_matrix(Warp&, const Instruction&, Lanes);
void copy_async(Warp&, const Instruction&, Lanes);
void copy_commit(Warp&, const Instruction&, Lanes);
void copy_wait(Warp&, const Instruction&, Lanes);  // offset: groups that may be under way; -1: wait_all

// Reads shared memory for cp.async, ldmatrix and the like after all checks; `address` is within the window.
uint8_t* shared_for_read(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes);
uint8_t* shared_for_write(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes, const void* value);
// Device memory, after the same checks.
uint8_t* device_memory(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes);

}  // namespace teon::gpusim
