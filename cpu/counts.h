// What this process has asked of the device so far, for tests of what a training step must not do.
#pragma once

#include <atomic>
#include <cstdint>

namespace teon::cpu {

struct Counters {
    std::atomic<int64_t> allocations = 0, frees = 0;  // of device and pinned memory
    std::atomic<int64_t> launches = 0;                // of kernels
    // Of the host for the device, where there was something to wait for: for all that a stream or the device held, and
    // for an event that was recorded earlier.
    std::atomic<int64_t> waits = 0, event_waits = 0;
    std::atomic<int64_t> frees_that_wait = 0;  // likewise
    std::atomic<int64_t> pageable_waits = 0;   // copies that waited because their host memory is pageable
};
inline Counters counters;

}  // namespace teon::cpu
