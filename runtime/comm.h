// Communication between ranks. comm_self.cpp is the single process; comm_mpi.cpp and comm_nccl.cu come behind the same
// interface. Counts are elements, never bytes. Every call is ordered with the stream it is given.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/device.h"
#include "runtime/dtype.h"

namespace teon {

class Comm {
public:
    virtual ~Comm() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual void all_reduce_sum(float* data, int64_t n, const Stream& stream) = 0;        // in place
    virtual void reduce_sum(float* data, int64_t n, int root, const Stream& stream) = 0;  // in place on root
    virtual void broadcast(void* data, int64_t n, DType dtype, int root, const Stream& stream) = 0;
    virtual void all_gather(void* out, const void* in, int64_t n_each, DType dtype, const Stream& stream) = 0;
    virtual void barrier() = 0;
    virtual void abort(int status) noexcept = 0;  // ends all ranks
};

std::unique_ptr<Comm> make_comm();  // from the environment the program was launched in

}  // namespace teon
