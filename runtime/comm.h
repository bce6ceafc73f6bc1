// Communication between ranks, over NCCL. Counts are elements, never bytes.
//
// Every operation is queued and runs asynchronously on the communicator's own stream, in the order in which it was
// queued: all ranks must queue the same operations in the same order. An operation begins once what `stream` holds at
// the call is done; until a join() its memory must neither be read, written nor freed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "runtime/device.h"
#include "runtime/launch.h"

namespace teon {

// A piece of a flat buffer and the rank that it belongs to, in elements.
struct Part {
    int64_t offset = 0, size = 0;
    int root = 0;
};

// n elements cut into one part per rank; all but the last are multiples of `align` (and may be empty).
std::vector<Part> even_parts(int64_t n, int ranks, int64_t align = 64);

constexpr double kCommTimeout = 600;  // seconds

// The ranks of this run: those that the program was launched as (runtime/launch.h), or this process alone, whose
// operations leave the data as they are.
//
// A rank that waits for the others longer than its timeout, or learns from NCCL that one is lost, prints what
// it waited for and ends its process with status 1; the launcher then ends the others. So does one that cannot go on
// (fail()). Of several ranks that have something to say, rank 0 is the first, and mostly the only one.
class Comm {
public:
    // Waits until all ranks are here. Throws Error where they cannot meet (runtime/exchange.h), where the program was
    // built without NCCL or MPI, or where NCCL cannot be started.
    explicit Comm(double timeout_s = kCommTimeout);
    // Waits for all ranks; while an exception propagates, aborts what is under way instead.
    ~Comm();

    int rank() const { return launch_.rank; }
    int size() const { return launch_.size; }

    // Each part, in place on its root = the sum over all ranks, in an order that does not depend on timing (by rank on
    // CPUs). dtype: float, or bf16, in which each partial sum is rounded. The other ranks' parts stay as they are.
    // Throws Error on a part with a negative size or no root.
    void reduce_sum(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream);
    // Each part on every rank = its root's.
    void broadcast(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream);
    // In place, the same bits on every rank.
    void all_reduce_sum(float* data, int64_t n, const Stream& stream);
    // out (size(), n_each) = every rank's in (n_each), by rank. in may lie at its place in out.
    void all_gather(void* out, const void* in, int64_t n_each, DType dtype, const Stream& stream);
    // The stream continues when everything queued so far is done.
    void join(const Stream& stream);
    // The event is when everything queued so far is done. Of several ranks only.
    void record(Event& event);
    // The host waits until all ranks are here and their operations are done.
    void barrier();

    // This rank cannot go on: prints "rank N: why" and ends the process. Returns only if there is no other rank.
    void fail(const std::string& why) noexcept;

    // What this rank has sent if every part goes directly between its root and each other rank.
    int64_t bytes_sent() const { return bytes_sent_; }

private:
    class Nccl;
    void check(const char* operation, const std::vector<Part>& parts) const;

    const Launch launch_;
    std::unique_ptr<Nccl> nccl_;  // of several ranks
    int64_t bytes_sent_ = 0;
};

}  // namespace teon
