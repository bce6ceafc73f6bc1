// The part of NCCL that runtime/ uses, for CPUs (cpu/nccl.cpp, over MPI). Names, enumerators, values and meanings are
// those of NVIDIA's "NCCL User Guide" (docs.nvidia.com/deeplearning/nccl/user-guide), whose headings stand before the
// functions.
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
// Communicator Creation and Management Functions. A process is one rank here, the one that MPI says it is. MPI has been
// initialized with MPI_THREAD_SERIALIZED, and no other thread calls it while a communicator exists.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
// Calls that are not the same on all ranks are ncclInvalidUsage; their operation then never ends, as NCCL's would not.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
const char* ncclGetErrorString(ncclResult_t result);
// The string belongs to the calling thread. While nothing has failed: which ranks have not yet called what this one
// waits for.
const char* ncclGetLastError(ncclComm_t comm);

// Collective Communication Functions. Only float32 is summed, in the order of the ranks.
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream);

// Group Calls. Those of one group have one communicator and one stream here.
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
}  // extern "C"
