// What every operation is given: the stream it runs on, its linear algebra handle, the communicator,
// and whether to go on.
#pragma once

#include <functional>
#include <memory>

#include "runtime/comm.h"
#include "runtime/device.h"
#include "runtime/linalg.h"

namespace teon {

struct Context {
    Stream stream;
    Linalg linalg{stream};
    std::unique_ptr<Comm> comm;
    // Asked on the host between layers, micro-batches and tokens: whether to end now. From the first yes on it stays
    // so, and what is being computed counts for nothing: layers may be left out, but never what other ranks take part
    // in.
    std::function<bool()> give_up = [] { return false; };
    explicit Context(double comm_timeout_s = kCommTimeout) : comm(std::make_unique<Comm>(comm_timeout_s)) {}
    Context(Context&&) = delete;  // linalg refers to stream
};

}  // namespace teon
