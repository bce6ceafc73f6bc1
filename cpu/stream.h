// Streams, events and graphs. hardware.h decides when their work runs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "cpu/hardware.h"

namespace teon::cpu {

// Queues work, which may touch device memory, on behalf of the call or kernel `what` (a string that is never freed). If
// the work runs at once, this throws the work's exception. Otherwise the exception becomes the device's error, which
// every later call returns.
cudaError_t enqueue(cudaStream_t stream, const char* what, std::function<void()> work);
// Likewise, but asynchronously: a thread of the stream runs this work and the work that follows it.
cudaError_t enqueue_async(cudaStream_t stream, const char* what, std::function<void()> work);

// Like enqueue, but does not copy work that runs at once.
template <typename Work>
cudaError_t submit(cudaStream_t stream, const char* what, Work&& work) {
    if (!at_once(stream)) return enqueue(stream, what, std::forward<Work>(work));
    work();
    return cudaSuccess;
}

// For launches and products: fails if the stream does not belong to the calling thread's device.
cudaError_t check_device(cudaStream_t stream, const char* what);

// Waits for all work of the stream, on behalf of the call `what`. Fails during capture.
cudaError_t wait_for(cudaStream_t stream, const char* what);
// For calls that may wait or that change memory: fails while a capture forbids them.
cudaError_t refuse_in_capture(const char* what);
bool is_capturing(cudaStream_t stream);

// Runs all work of all streams. Returns false if there was none.
bool run_everything();

}  // namespace teon::cpu
