// Instructions that access memory, and the checks of their accesses.
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

void load(Warp&, const Instruction&, Lanes);
void store(Warp&, const Instruction&, Lanes);
void load_parameter(Warp&, const Instruction&, Lanes);
void load_matrix(Warp&, const Instruction&, Lanes);
void store_matrix(Warp&, const Instruction&, Lanes);
void copy_async(Warp&, const Instruction&, Lanes);
void copy_commit(Warp&, const Instruction&, Lanes);
void copy_wait(Warp&, const Instruction&, Lanes);  // offset: groups that may stay in flight; -1: wait_all

// Check an access to shared memory and return its location, for ld, st, cp.async, ldmatrix and the like. `address` is
// an offset in the shared window; `value` is what will be stored, or null.
uint8_t* shared_for_read(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes);
uint8_t* shared_for_write(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes, const void* value);
// Checks a lane's access in the instruction's space, or in that of a generic address, and returns its location.
uint8_t* checked_memory(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes, bool writes,
                        const void* value);
// Likewise for device memory.
uint8_t* device_memory(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes);
// A read of [address, address + bytes) in the space in which this generic address is.
const uint8_t* generic_memory(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes);

// The addresses of all lanes in an operand and the instruction's offset.
struct Addresses {
    uint64_t of[32];
};
Addresses addresses(Warp& w, const Instruction& i, int operand);
// Counts an access. Generic addresses all count as addresses in the space of the first lane's address.
void count_access(Warp& w, const Instruction& i, Lanes lanes, Addresses a, uint32_t bytes);

}  // namespace teon::gpusim
