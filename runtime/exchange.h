// Sends rank 0's id of the communicator to the other ranks, once, when a run starts. Where MPI started the ranks it
// carries it; else rank 0 waits for the others at MASTER_ADDR.
//
// No other process can join: both sides prove that they know a secret (TEON_SECRET, 32 hexadecimal digits, or
// what ~/.teon_secret holds) by a keyed hash of the other's random number; rank 0 listens at that one address; what a
// stranger may send is bounded in size and number, delays no rank, is compared and never printed.
#pragma once

#include <string>

#include "runtime/launch.h"

namespace teon {

// Returns rank 0's payload on every rank; all pass one of the same size. Throws Error after timeout_s, naming the ranks
// that are missing, or what rank 0's address answered; at once where rank 0 cannot listen, two processes claim one rank
// or the secret cannot be read. Through MPI it waits for ever: the caller's watchdog ends that.
std::string exchange(const Launch& launch, std::string payload, double timeout_s);
// Whether exchange() goes through MPI.
bool meets_through_mpi(const Launch& launch);
// The last call of a rank, once all have finished: finalizes MPI.
void leave(const Launch& launch) noexcept;

// At MASTER_ADDR, wherever the ranks come from.
std::string exchange_at_master(const Launch& launch, std::string payload, double timeout_s, const std::string& secret);

// TEON_SECRET or what ~/.teon_secret holds; the first rank that looks for that file makes it. Throws UsageError if it
// is not 32 hexadecimal digits, or the file not one that only its owner, this user, can read.
std::string find_secret();

}  // namespace teon
