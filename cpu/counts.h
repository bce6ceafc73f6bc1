// Counts the process's requests to the device, for tests of what a training step must not do.
#pragma once

#include <atomic>
#include <cstdint>

namespace teon::cpu {

struct Counters {
    std::atomic<int64_t> allocations = 0, frees = 0;  // of device and pinned memory
    std::atomic<int64_t> launches = 0;                // of kernels
    // Waits of the host for unfinished work: for all work of a stream or of the device, and for work before an event.
    std::atomic<int64_t> waits = 0, event_waits = 0;
    std::atomic<int64_t> frees_that_wait = 0;  // frees that waited for unfinished work
    std::atomic<int64_t> pageable_waits = 0;   // copies that waited because their host memory is pageable
    std::atomic<int64_t> early_launches = 0;   // of kernels that may start before the one before them has ended
};
inline Counters counters;

}  // namespace teon::cpu
