// How all ranks get the same id of NCCL, with which NCCL then connects them.
//
// If MPI started the ranks, rank 0 makes the id and MPI broadcasts it. Otherwise the id is an address, which every rank
// knows: NCCL_COMM_ID, or else MASTER_ADDR and MASTER_PORT, where NCCL listens on rank 0. Nothing is left behind that a
// later run could take for its own. Like NCCL's other connections, these are neither authenticated nor encrypted.
#pragma once

#include <functional>
#include <string>

#include "runtime/cuda/launch.h"

namespace teon {

// Returns whether MPI connects the ranks: always on CPUs.
bool meets_through_mpi(const Launch& launch);

// Returns rank 0's payload on every rank; all ranks pass payloads of the same size. Initializes MPI. Has no timeout:
// the caller's watchdog ends the wait. Throws Error if this program's MPI did not start the ranks.
std::string broadcast_over_mpi(const Launch& launch, std::string payload);
// Called by ranks that failed before the ranks met: the first of them reports. All others learn of it, also those that
// then meet, which end with the largest status. Returns false if MPI does not connect the ranks or they have met. May
// wait forever for a rank that has ended.
bool report_over_mpi(const Launch& launch, int status, const std::function<void()>& report);
// Finalizes MPI if it was used. The last call of a rank, after all ranks have finished.
void leave(const Launch& launch) noexcept;

// Returns the address where NCCL is to listen on rank 0, as NCCL_COMM_ID has it, and sets that variable if it is not
// set. Throws UsageError if the environment has no address.
std::string address_of_rank_0(const Launch& launch);

}  // namespace teon
