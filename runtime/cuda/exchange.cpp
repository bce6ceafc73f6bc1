#include "runtime/cuda/exchange.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#if __has_include(<mpi.h>)
#define OMPI_SKIP_MPICXX  // the old C++ bindings would need a library of their own
#define MPICH_SKIP_MPICXX
#include <mpi.h>
#endif

#include "base/check.h"
#include "runtime/cuda/device.h"

namespace teon {

namespace {

bool on_cpus() { return std::string_view(backend_name()) != "cuda"; }

}  // namespace

#if __has_include(<mpi.h>)

namespace {

bool initialized() {
    int value = 0;
    MPI_Initialized(&value);
    return value != 0;
}

// This rank and the number of ranks, of which MPI knows. Initializes MPI.
std::pair<int, int> rank_and_size() {
    int provided = 0;
    int rank = 0;
    int size = 1;
    if (!initialized()) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return {rank, size};
}

// If ranks have a status other than 0, the first of them reports, and all get the largest status and are at MPI's end.
bool report_failure(const Launch& l, int& status, const std::function<void()>& report) {
    int first = status ? l.rank : l.size;
    MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first == l.size) return false;
    if (first == l.rank) report();
    MPI_Allreduce(MPI_IN_PLACE, &status, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);  // waits for the report
    MPI_Finalize();
    return true;
}

}  // namespace

bool meets_through_mpi(const Launch& l) { return l.mpi || on_cpus(); }

bool report_over_mpi(const Launch& l, int status, const std::function<void()>& report) {
    if (!l.mpi || initialized() || rank_and_size() != std::pair(l.rank, l.size)) return false;
    return report_failure(l, status, report);
}

std::string broadcast_over_mpi(const Launch& l, std::string payload) {
    CHECK_USAGE(l.mpi,
                "{} started {} ranks, but ranks on CPUs are MPI's: start them with mpirun --bind-to none, or srun "
                "--mpi=pmix",
                l.by, l.size);
    const bool first_call = !initialized();
    const auto [rank, size] = rank_and_size();
    CHECK(size == l.size && rank == l.rank,
          "{} says rank {} of {}, but MPI says {} of {}; start them with the mpirun of this program's MPI", l.by,
          l.rank, l.size, rank, size);
    int provided = 0;
    MPI_Query_thread(&provided);
    CHECK(provided >= MPI_THREAD_SERIALIZED, "this MPI does not allow threads (MPI_THREAD_SERIALIZED)");
    int status = 0;
    if (first_call && report_failure(l, status, [] {})) std::_Exit(status);
    MPI_Bcast(payload.data(), static_cast<int>(payload.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    return payload;
}

void leave(const Launch& l) noexcept {
    if (meets_through_mpi(l)) MPI_Finalize();
}

#else

// A GPU program without MPI uses the address, if mpirun's environment has one.
bool meets_through_mpi(const Launch& l) { return on_cpus() || (l.mpi && l.host.empty()); }

bool report_over_mpi(const Launch&, int, const std::function<void()>&) { return false; }

std::string broadcast_over_mpi(const Launch& l, std::string) {
    throw UsageError(fmt::format(
        "{} started {} ranks, but this program was built without MPI: install libopenmpi-dev and build again{}", l.by,
        l.size, on_cpus() ? "" : ", or set MASTER_ADDR and MASTER_PORT"));
}

void leave(const Launch&) noexcept {}

#endif

std::string address_of_rank_0(const Launch& l) {
    constexpr const char* kVariable = "NCCL_COMM_ID";
    if (const char* address = std::getenv(kVariable); address && *address) return address;
    CHECK_USAGE(!l.host.empty(), "{} does not say where rank 0 is: set MASTER_ADDR and MASTER_PORT", l.by);
    const bool is_ipv6 = l.host.find(':') != std::string::npos;
    const std::string address = fmt::format("{}:{}", is_ipv6 ? "[" + l.host + "]" : l.host, l.port);
    ::setenv(kVariable, address.c_str(), 1);
    return address;
}

}  // namespace teon
