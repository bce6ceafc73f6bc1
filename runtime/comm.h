// Communication between ranks. comm_self.cpp is the single process; comm_mpi.cpp (host) and comm_nccl.cu (CUDA) come
// behind the same interface. Counts are elements, never bytes.
//
// Every operation is queued and runs beside the caller, on the communicator's own stream or thread, in the order in
// which it was queued: all ranks must queue the same operations in the same order. An operation begins once what
// `stream` holds at the call is done; until a join() its memory must neither be read, written nor freed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/dtype.h"
#include "runtime/launch.h"

namespace teon {

// A piece of a flat buffer and the rank that it belongs to, in elements.
struct Part {
    int64_t offset = 0, size = 0;
    int root = 0;
};

// n elements cut into one part per rank; all but the last are multiples of `align` (and may be empty).
std::vector<Part> even_parts(int64_t n, int ranks, int64_t align = 64);

class Comm {
public:
    virtual ~Comm() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;

    // Each part, in place on its root = the sum over all ranks, in float and in an order that does not depend on timing
    // (by rank on the host). The other ranks' parts stay as they are. Throws Error on a part with a negative size or no
    // root.
    void reduce_sum(float* data, const std::vector<Part>& parts, const Stream& stream);
    // Each part on every rank = its root's.
    void broadcast(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream);
    // In place, the same bits on every rank.
    void all_reduce_sum(float* data, int64_t n, const Stream& stream);
    // out (size(), n_each) = every rank's in (n_each), by rank. in may lie at its place in out.
    void all_gather(void* out, const void* in, int64_t n_each, DType dtype, const Stream& stream);
    // The stream continues when everything queued so far is done. (On the host the caller waits.)
    virtual void join(const Stream& stream) = 0;
    // The host waits until all ranks are here and their operations are done.
    virtual void barrier() = 0;

    // Tells all ranks that this one cannot go on. Rank 0 prints "rank N: why" and all ranks exit with status 1. Returns
    // only if there is no other rank.
    virtual void fail(const std::string& why) noexcept = 0;

    // What this rank has sent if every part goes directly between its root and each other rank.
    int64_t bytes_sent() const { return bytes_sent_; }

protected:
    virtual void queue_reduce(float* data, const std::vector<Part>& parts, const Stream& stream) = 0;
    virtual void queue_broadcast(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream) = 0;

private:
    void check(const char* operation, const std::vector<Part>& parts) const;
    int64_t bytes_sent_ = 0;
};

std::unique_ptr<Comm> make_comm();  // from the environment the program was launched in
// Of one of several ranks: comm_mpi.cpp, comm_nccl.cu. Throws Error where the program was built without MPI or NCCL, or
// where a rank does not arrive within launch.timeout_s (it is named).
std::unique_ptr<Comm> make_comm(const Launch& launch);

}  // namespace teon
