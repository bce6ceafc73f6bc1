#include "runtime/cuda/launch.h"

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include "base/check.h"
#include "base/hash.h"
#include "runtime/cuda/device.h"

namespace teon {

namespace {

std::string text(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

// Returns the first of the variables that is set, as a number.
std::optional<int> number(std::initializer_list<const char*> names, int lowest) {
    for (const char* name : names) {
        const std::string value = text(name);
        if (value.empty()) continue;
        int n = 0;
        auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
        CHECK_USAGE(error == std::errc() && end == value.data() + value.size() && n >= lowest,
                    "{}={}: expected a whole number from {} on", name, value, lowest);
        return n;
    }
    return std::nullopt;
}

// A port on which the ranks of one Slurm step agree without communication; below the range of ephemeral ports.
int port_of(const std::string& run) { return 20000 + static_cast<int>(hash_of(run) % 10000); }

// Fills l from these variables; returns false if the rank or the size is missing.
bool take(Launch& l, const char* by, std::optional<int> rank, std::optional<int> size, std::optional<int> local_rank,
          std::optional<int> local_size) {
    if (!rank || !size) return false;
    l.by = by;
    l.rank = *rank;
    l.size = *size;
    l.local_rank = local_rank.value_or(*rank);
    l.local_size = local_size.value_or(*size);
    return true;
}

// Returns the name of a launcher that sets RANK and WORLD_SIZE.
std::string launcher_like_torchrun() {
    if (!text("TORCHELASTIC_RUN_ID").empty()) return "torchrun";
    const std::string name = text("TEON_LAUNCHER");  // set by scripts/launch/local.py
    return name.empty() ? "a launcher (RANK, WORLD_SIZE)" : name;
}

void find_ranks(Launch& l) {
    Launch mpi;
    mpi.mpi = take(mpi, "mpirun", number({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0),
                   number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1),
                   number({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}, 0),
                   number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, 1));
    const bool torch = take(l, launcher_like_torchrun().c_str(), number({"RANK"}, 0), number({"WORLD_SIZE"}, 1),
                            number({"LOCAL_RANK"}, 0), number({"LOCAL_WORLD_SIZE"}, 1));
    if (mpi.mpi && (!torch || (mpi.rank == l.rank && mpi.size == l.size))) {
        l = mpi;
    } else if (!torch && number({"SLURM_STEP_NUM_TASKS"}, 1).value_or(1) > 1) {
        // A shell inside an allocation, with one task, is not a rank.
        take(l, "srun", number({"SLURM_PROCID"}, 0), number({"SLURM_STEP_NUM_TASKS"}, 1), number({"SLURM_LOCALID"}, 0),
             std::nullopt);
        l.mpi = !text("PMIX_RANK").empty();  // srun --mpi=pmix
    }
}

// Finds the address and the port where rank 0 waits for the others.
void find_master(Launch& l) {
    l.host = text("MASTER_ADDR");
    if (!l.host.empty()) {
        std::optional<int> port = number({"MASTER_PORT"}, 1);
        CHECK_USAGE(port && *port < 65535, "MASTER_ADDR is set, MASTER_PORT is not (or not a port)");
        // torchrun's own agent listens at MASTER_PORT.
        l.port = *port + (text("TORCHELASTIC_USE_AGENT_STORE") == "True" ? 1 : 0);
    } else if (l.by == "srun") {
        const std::string nodes = text("SLURM_STEP_NODELIST");
        l.host = first_host(nodes.empty() ? text("SLURM_JOB_NODELIST") : nodes);
        l.port = port_of(text("SLURM_JOB_ID") + "." + text("SLURM_STEP_ID"));
    }
}

}  // namespace

Launch launch_from_environment() {
    Launch l;
    find_ranks(l);
    if (l.alone()) return l;
    CHECK_USAGE(l.rank < l.size, "{} says rank {} of {}", l.by, l.rank, l.size);
    find_master(l);
    return l;
}

void set_device_of(const Launch& launch) {
    const int devices = device_count();
    CHECK(devices == 1 || launch.local_rank < devices, "rank {} is number {} on this machine, which has {} GPUs",
          launch.rank, launch.local_rank, devices);
    set_device(devices == 1 ? 0 : launch.local_rank);
}

std::string first_host(const std::string& nodes) {
    const size_t bracket = nodes.find('[');
    const size_t comma = nodes.find(',');
    if (bracket == std::string::npos || comma < bracket) return nodes.substr(0, comma);
    const size_t end = nodes.find_first_of(",-]", bracket);
    const size_t close = nodes.find(']', bracket);
    CHECK_USAGE(close != std::string::npos, "cannot read the node list '{}'", nodes);
    const size_t rest = nodes.find(',', close);  // a suffix after the bracket belongs to the name
    return nodes.substr(0, bracket) + nodes.substr(bracket + 1, end - bracket - 1) +
           nodes.substr(close + 1, rest == std::string::npos ? rest : rest - close - 1);
}

}  // namespace teon
