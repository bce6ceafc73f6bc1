// The context of every operation: the stream it runs on, the linear algebra handle, the communicator, and whether to
// stop early.
#pragma once

#include <functional>
#include <memory>

#include "runtime/cuda/comm.h"
#include "runtime/cuda/device.h"
#include "runtime/linalg/linalg.h"

namespace teon {

struct Context {
    Stream stream;
    Linalg linalg{stream};
    std::unique_ptr<Comm> comm;
    // Returns whether to stop now; the host asks between layers, micro-batches and tokens. Once it has returned true,
    // it always does, and the results of the current computation are discarded: layers may be skipped, but never an
    // operation in which other ranks take part.
    std::function<bool()> give_up = [] { return false; };
    explicit Context(double comm_timeout_s = kCommTimeout) : comm(std::make_unique<Comm>(comm_timeout_s)) {}
    Context(Context&&) = delete;  // linalg refers to stream
};

}  // namespace teon
