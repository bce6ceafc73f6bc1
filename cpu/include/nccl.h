// The part of NCCL that runtime/ uses, for CPUs (cpu/nccl.cpp, over MPI). Names, enumerators, values and meanings are
// those of NVIDIA's "NCCL User Guide" (docs.nvidia.com/deeplearning/nccl/user-guide), whose headings precede the
// functions here.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "nccl_values.h"

// Types
#define TEON_ENUMERATOR(name, value) name = value,
#define TEON_STATUS(name, value, message) name = value,
enum ncclResult_t { NCCL_RESULTS(TEON_STATUS) };
enum ncclDataType_t { NCCL_TYPES(TEON_ENUMERATOR) };
enum ncclRedOp_t { NCCL_OPERATORS(TEON_ENUMERATOR) };
#undef TEON_STATUS
#undef TEON_ENUMERATOR
using ncclComm_t = struct ncclComm*;
constexpr int NCCL_UNIQUE_ID_BYTES = 128;
struct ncclUniqueId {
    char internal[NCCL_UNIQUE_ID_BYTES];
};

extern "C" {
// Communicator Creation and Management Functions. A process is one rank here, the same as in MPI. The caller
// initializes MPI with MPI_THREAD_SERIALIZED, and no other thread calls MPI while a communicator exists.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
// Calls that differ between ranks are ncclInvalidUsage. Their operation then never ends, as with NCCL.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
const char* ncclGetErrorString(ncclResult_t result);
// The string belongs to the calling thread. If nothing has failed, it names the ranks that have not yet made the call
// for which this rank waits.
const char* ncclGetLastError(ncclComm_t comm);

// Collective Communication Functions. Only float32 and bfloat16 are summed, in the order of the ranks.
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream);

// Group Calls. All calls of a group use the same communicator and stream here.
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
}  // extern "C"
