// How this process was launched: alone, or as one of several ranks by mpirun, torchrun or srun. All information comes
// from environment variables. Nothing here connects to anything, and only set_device_of() touches a device.
#pragma once

#include <string>

namespace teon {

struct Launch {
    std::string by;  // "mpirun", "torchrun", "local.py", "srun" or words for another launcher; empty: alone
    int rank = 0, size = 1, local_rank = 0;
    int local_size = 1;  // ranks on this machine, or size if the launcher does not say
    bool mpi = false;    // MPI connects the ranks
    std::string host;    // where rank 0 waits for the others; empty if the environment does not say
    int port = 0;
    bool alone() const { return by.empty(); }
};

// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun and launchers that imitate it) first; if MPI's
// variables have the same rank and size, it prefers those. Then it reads the variables of OpenMPI and MPICH, then those
// of a Slurm step with several tasks. Throws UsageError if a value is invalid, the rank is not below the size, or
// MASTER_ADDR is set without MASTER_PORT.
Launch launch_from_environment();

// Selects the device whose index is the local rank, or the only visible device. Throws Error if there are too few
// devices.
void set_device_of(const Launch& launch);

// Returns the first host of a Slurm node list: "gpu[07-09,12],login" -> "gpu07".
std::string first_host(const std::string& nodes);

}  // namespace teon
