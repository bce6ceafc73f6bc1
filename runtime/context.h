// What every operation is given: the stream it runs on, its linear algebra handle and the communicator.
#pragma once

#include "runtime/comm.h"
#include "runtime/device.h"
#include "runtime/linalg.h"

namespace teon {

struct Context {
    Stream stream;
    Linalg linalg{stream};
    std::unique_ptr<Comm> comm;
    explicit Context(double comm_timeout_s = kCommTimeout) : comm(std::make_unique<Comm>(comm_timeout_s)) {}
    Context(Context&&) = delete;  // linalg refers to stream
};

}  // namespace teon
