// What CUDA's host functions and the libraries in this folder ask of the device under them. hardware_cpu.cpp answers
// for a CPU, whose work runs within the call that queues it. A program that puts another device under the same
// functions links its own definitions instead of hardware_cpu.cpp, memory.cpp, device.cpp, simt.cpp and launch.cpp:
// gpusim/ does.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/include/cuda_runtime.h"

namespace teon::cpu {

// ---- devices and libraries

int current_device();  // of the calling thread
bool is_device(int index);
bool multiplies_fp8();  // whether the device's library multiplies FP8

// CUBLASLT_REFUSE if the environment does not have it (cublaslt.cpp).
std::string_view default_refusals();
// Called before a product uses its workspace: a library may overwrite all of it.
void disturb_workspace(void* workspace, size_t bytes);

// ---- device memory

// Returns whether [p, p + bytes) is device memory. If not, `why` may say more.
bool is_device_memory(const void* p, size_t bytes, std::string& why);

// While an object lives, the calling thread may touch device memory outside of queued work.
class DeviceAccess {
public:
    DeviceAccess();
    ~DeviceAccess();
    DeviceAccess(const DeviceAccess&) = delete;
};
// Called by a thread, at its start, that will only do the device's work.
void begin_device_thread();

// ---- when queued work runs (engine.h); the caller holds the engine's mutex, except in at_once()

struct Call;
struct Operation;
struct GraphNode;
using OperationPtr = std::shared_ptr<Operation>;

// Returns the stream that a call means: a null handle may stand for a default stream.
cudaStream_t actual_stream(cudaStream_t stream);
// Returns whether streams may be created that wait for the default stream, and it for them.
bool has_blocking_streams();
// Called before an operation is appended: makes the stream wait for others if the default stream asks for it.
void before_append(cudaStream_t stream);
// Returns whether work that is queued on the stream now runs at once.
bool at_once(cudaStream_t stream);
// Returns whether the caller runs this work itself instead of queueing it. May replace the work. `async`: a thread of
// the stream has to run it.
bool runs_in_call(cudaStream_t stream, std::function<void()>& work, bool async);
void operation_added(const OperationPtr& operation);
void operation_appended(cudaStream_t stream, const OperationPtr& operation);
void operation_ready(const OperationPtr& operation);  // its last predecessor is done
// Lets the stream's next work wait for an operation that is not done.
void wait_on_stream(Call& call, cudaStream_t stream, const OperationPtr& operation);
// Queues the nodes of a graph and, for the call, their common end. Returns the error of work that runs at once.
cudaError_t launch_nodes(Call& call, const std::vector<GraphNode>& nodes, cudaStream_t stream);
// These release the mutex while work runs.
void run_until_done(std::unique_lock<std::mutex>& lock, const OperationPtr& target);
void run_some(std::unique_lock<std::mutex>& lock);  // at the begin of each call
void run_all(std::unique_lock<std::mutex>& lock);

}  // namespace teon::cpu
