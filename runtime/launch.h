// How this process was launched: alone, or as one of several ranks by mpirun, torchrun or srun. All of it comes from
// environment variables, so nothing here connects to anything or touches a device.
#pragma once

#include <string>

namespace teon {

struct Launch {
    std::string by;  // "mpirun", "torchrun", "srun"; empty: alone
    int rank = 0, size = 1, local_rank = 0;
    int local_size = 1;  // ranks on this machine, as far as the launcher says; else size
    bool mpi = false;    // MPI connects the ranks
    std::string run;     // the launcher's name of this run, if it has one: distinguishes runs on one port
    std::string host;    // where rank 0 waits for the others; empty: not known from the environment
    int port = 0;
    bool alone() const { return by.empty(); }
};

// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun and everything that imitates it) come first, unless MPI says the
// same, then OpenMPI's and MPICH's variables, then those of a Slurm step of several tasks. Throws UsageError where they
// contradict each other.
Launch launch_from_environment();

// The device of this rank: the local rank's, or the only one that it is allowed to see. Throws Error if there are too
// few.
void set_device_of(const Launch& launch);

// The first host of a Slurm node list: "gpu[07-09,12],login" -> "gpu07".
std::string first_host(const std::string& nodes);

}  // namespace teon
