// Streams, events and graphs.
//
// On a CPU, work runs inside of the call that queues it, except on streams with asynchronous work (communication).
// On the modelled GPU (TEON_MODEL_GPU), work runs in the thread that waits for it, one operation at a time:
//     CUDA_ORDER=late         only the operation that a thread waits for, and its predecessors (the default)
//     CUDA_ORDER=random:SEED  any call may also run other operations that are ready
// Work that no thread waits for runs after a while, as on a GPU. With CUDA_DRY=1 work is queued but does nothing, and
// memory is not limited: calls, launches and products of any size are checked.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "cpu/include/cuda_runtime.h"

namespace teon::cpu {

// Queues work, which may touch device memory, on behalf of the call or kernel `what` (a string that is never freed). If
// the work runs at once, this throws the work's exception. Otherwise the exception becomes the device's error, which
// every later call returns.
cudaError_t enqueue(cudaStream_t stream, const char* what, std::function<void()> work);
// Likewise, but asynchronously: a thread of the stream runs this work and the work that follows it.
cudaError_t enqueue_async(cudaStream_t stream, const char* what, std::function<void()> work);

// Returns whether work that is queued on the stream now runs at once.
bool at_once(cudaStream_t stream);
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

// Sets the order to "late" or "random:SEED" (see CUDA_ORDER) and returns the previous one. Throws Error for other text.
std::string set_order(const std::string& order);

}  // namespace teon::cpu
