// Tests NCCL on a single rank, which the engine itself never uses; test/runtime/cuda/test_comm.cpp tests several ranks.
#include <nccl.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include <string>
#include <vector>

#include "runtime/cuda/exchange.h"
#include "test/support/catch.h"
#include "test/support/skip.h"

using namespace teon;

TEST_CASE("cpu/nccl: on a single rank the sum and the broadcast are copies") {
#if defined(__SANITIZE_ADDRESS__)
    const __lsan::ScopedDisabler disabler;  // MPI's libraries never free some of their memory
#endif
    Launch alone;
    alone.by = "mpirun";
    alone.mpi = true;
    try {
        broadcast_over_mpi(alone, "");  // initializes MPI
    } catch (const UsageError& error) { SKIP_TEST(error.what()); }
    ncclUniqueId id;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    REQUIRE(ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    const std::vector<float> values = {1, 2, 3};
    std::vector<float> sum(3);
    std::vector<float> copy(3);
    REQUIRE(ncclReduce(values.data(), sum.data(), 3, ncclFloat32, ncclSum, 0, comm, stream) == ncclSuccess);
    REQUIRE(ncclBroadcast(values.data(), copy.data(), 3, ncclFloat32, 0, comm, stream) == ncclSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    REQUIRE(sum == values);
    REQUIRE(copy == values);
    REQUIRE(ncclCommDestroy(comm) == ncclSuccess);
    cudaStreamDestroy(stream);
    leave(alone);
}
