// Streams, events and graphs: when work is done.
//
// On a CPU: inside of the call, except on streams with asynchronous work (communication).
// On the modelled GPU (TEON_MODEL_GPU): in the thread that waits for it, one operation at a time:
//     CUDA_ORDER=late         only what is waited for, and what that needs (the default)
//     CUDA_ORDER=random:SEED  also others that might run, now and then at any call
// Work that no thread waits for is done after a while, as on a GPU. With CUDA_DRY=1 work is queued and does nothing,
// and memory is not limited: calls, launches and products of any size are checked.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "cpu/include/cuda_runtime.h"

namespace teon::cpu {

// Queues work, which may touch device memory, on behalf of the call or kernel `what` (a string that stays). What the
// work throws comes out of here where it is done at once; else it is the device's error, which every later call
// returns.
cudaError_t enqueue(cudaStream_t stream, const char* what, std::function<void()> work);
// The same, but asynchronously: the stream does it, and what follows it, on a thread of its own.
cudaError_t enqueue_async(cudaStream_t stream, const char* what, std::function<void()> work);

// As enqueue, but makes no copy of the work where it is done at once.
bool at_once(cudaStream_t stream);
template <typename Work>
cudaError_t submit(cudaStream_t stream, const char* what, Work&& work) {
    if (!at_once(stream)) return enqueue(stream, what, std::forward<Work>(work));
    work();
    return cudaSuccess;
}

// For launches and products, which a thread may queue only on a stream of its own device.
cudaError_t check_device(cudaStream_t stream, const char* what);

// The calling thread waits for all that the stream holds, on behalf of the call `what`; an error during capture.
cudaError_t wait_for(cudaStream_t stream, const char* what);
// For calls that may wait or that change memory: refused while a capture forbids them.
cudaError_t refuse_in_capture(const char* what);
bool is_capturing(cudaStream_t stream);

// Runs all work of all streams; false if there was none.
bool run_everything();

// "late" or "random:SEED", as CUDA_ORDER; returns the order before. Throws Error if it is neither.
std::string set_order(const std::string& order);

}  // namespace teon::cpu
