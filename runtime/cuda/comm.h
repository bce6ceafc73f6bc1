// Communication between ranks, over NCCL. Counts are in elements, never in bytes.
//
// Operations run asynchronously on the communicator's own stream, in the order in which they were queued. All ranks
// must queue the same operations in the same order. An operation begins when all work that was queued on `stream`
// before the call is done. Until a join(), its memory must not be read, written or freed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/launch.h"

namespace teon {

// A slice of a flat buffer, in elements, and the rank that owns it.
struct Part {
    int64_t offset = 0, size = 0;
    int root = 0;
};

// Divides n elements into one part per rank. All sizes but the last are multiples of `align` (possibly 0).
std::vector<Part> even_parts(int64_t n, int ranks, int64_t align = 64);

constexpr double kCommTimeout = 600;  // seconds

// The ranks of this run (runtime/cuda/launch.h). A process that was launched alone is the only rank: sums and
// broadcasts leave its data unchanged.
//
// If a rank waits for the others longer than its timeout, or NCCL reports that another rank is lost, the rank prints
// the operation that it waited for and ends its process with status 1; the launcher then ends the others. A rank that
// cannot continue ends in the same way (fail()). If several ranks fail, rank 0 reports first, and usually it is the
// only one that does.
class Comm {
public:
    // Waits until all ranks have arrived. Throws Error if they cannot meet (runtime/cuda/exchange.h), if the program
    // was built without NCCL or without MPI where it is needed, or if NCCL cannot be started.
    explicit Comm(double timeout_s = kCommTimeout);
    // Waits for all ranks. While an exception propagates, aborts the operations in flight instead.
    ~Comm();

    int rank() const { return launch_.rank; }
    int size() const { return launch_.size; }

    // Sums each part over all ranks, in place on its root; the part stays unchanged on the other ranks. The order of
    // the sum does not depend on timing (on CPUs it is by rank). dtype is float or bf16; with bf16, each partial sum is
    // rounded. Throws Error if a size is negative, a root is not a rank, or dtype is f16.
    void reduce_sum(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream);
    // Copies each part from its root to every rank.
    void broadcast(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream);
    // Sums n elements over all ranks, in place. Every rank gets the same bits.
    void all_reduce_sum(float* data, int64_t n, const Stream& stream);
    // out (size(), n_each) = `in` (n_each) of every rank, in order of rank. `in` may be this rank's row of out.
    void all_gather(void* out, const void* in, int64_t n_each, DType dtype, const Stream& stream);
    // Makes the stream wait until everything queued so far is done.
    void join(const Stream& stream);
    // Records the event after everything queued so far. Does nothing if this is the only rank.
    void record(Event& event);
    // Makes the host wait until all ranks have arrived here and their operations are done.
    void barrier();

    // Prints "rank N: why" and ends the process with this status, because this rank cannot continue. Returns only if
    // this is the only rank.
    void fail(const std::string& why, int status = 1) noexcept;

    // The bytes that this rank has sent, if every part goes directly between its root and each other rank.
    int64_t bytes_sent() const { return bytes_sent_; }

private:
    class Nccl;
    void check(const char* operation, const std::vector<Part>& parts) const;

    const Launch launch_;
    std::unique_ptr<Nccl> nccl_;  // null if this is the only rank
    int64_t bytes_sent_ = 0;
};

}  // namespace teon
