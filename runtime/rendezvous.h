// Where the ranks of a run meet, and how they notice that one of them is gone: every rank holds a TCP connection to
// rank 0 for as long as the run lasts. Over it go, once, whatever rank 0 wants all to know (NCCL's unique id), and from
// then on signs of life. It carries no gradients.
//
// Fresh by construction: a rank that connects says which run it belongs to and which rank it is; rank 0 answers with a
// random number of this run, which its address file (Launch::file) holds as well. A file left by an earlier run leads
// to a port that nobody listens on, or to a program that answers differently, and is refused either way.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/launch.h"

namespace teon {

class Rendezvous {
public:
    // Returns once all ranks are connected; payload then holds what rank 0 passed. Throws Error after launch.timeout_s,
    // naming the ranks that are missing; at once if rank 0's port is taken or two processes claim one rank.
    Rendezvous(const Launch& launch, std::string& payload);
    // Says goodbye if close() was called; otherwise this rank counts as lost.
    ~Rendezvous();
    void close();

    // How many operations this rank has queued: when ranks wait for each other in vain, the one furthest behind is
    // named.
    void progress(int64_t operations) noexcept;

    // Rank 0 prints "rank N (host, pid): why"; every rank exits with status 1. If rank 0 does not answer, this one
    // prints.
    [[noreturn]] void fail(const std::string& why, bool name_slowest = false) noexcept;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
