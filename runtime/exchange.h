// Sends the communicator's id from rank 0 to the other ranks, once, when a run starts: through MPI if MPI started the
// ranks; otherwise rank 0 waits for the others at MASTER_ADDR.
//
// No other process can join. Both sides prove by a keyed hash of the other's random number that they know a secret (32
// hexadecimal digits: TEON_SECRET or the content of ~/.teon_secret). Rank 0 listens at that one address only. Data from
// a stranger is bounded in size and number, delays no rank, and is compared but never printed.
#pragma once

#include <string>

#include "runtime/launch.h"

namespace teon {

// Returns rank 0's payload on every rank; all ranks pass payloads of the same size. Throws Error after timeout_s: on
// rank 0 it names the missing ranks, on other ranks it tells what rank 0's address answered. Throws Error at once if
// rank 0 cannot listen, two processes claim the same rank or the secret cannot be read. Through MPI there is no
// timeout: the caller's watchdog ends the wait.
std::string exchange(const Launch& launch, std::string payload, double timeout_s);
// Returns whether exchange() goes through MPI.
bool meets_through_mpi(const Launch& launch);
// Finalizes MPI. The last call of a rank, after all ranks have finished.
void leave(const Launch& launch) noexcept;

// Like exchange(), but always at MASTER_ADDR.
std::string exchange_at_master(const Launch& launch, std::string payload, double timeout_s, const std::string& secret);

// Returns TEON_SECRET or the content of ~/.teon_secret; the first rank that looks for that file creates it. Throws
// UsageError if the secret is not 32 hexadecimal digits, or if the file is not a regular file of this user that only
// its owner can read.
std::string find_secret();

}  // namespace teon
