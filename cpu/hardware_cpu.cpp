// The CPU as a device: memory is the process's own, and work runs within the call that queues it. Only work that is
// asynchronous (communication), and the work behind it on its stream, runs in a thread of the stream.
#include "cpu/hardware.h"

#include "cpu/engine.h"
#include "cpu/stream.h"

namespace teon::cpu {

namespace {

// Runs in the thread of a stream with asynchronous work. Deletes the stream at the end.
void drain(cudaStream_t stream) {
    Engine& e = engine();
    for (std::unique_lock lock(e.mutex);;) {
        const auto due = [&] {
            return stream->queue.empty() ? stream->destroyed : stream->queue.front()->predecessors.empty();
        };
        e.changed.wait(lock, due);
        if (stream->queue.empty()) break;
        const OperationPtr operation = stream->queue.front();
        lock.unlock();
        execute(*operation);
        lock.lock();
        stream->queue.pop_front();
        --stream->queued;
        e.finish(operation);
    }
    delete stream;
}

}  // namespace

int current_device() { return 0; }
bool is_device(int index) { return index == 0; }
bool multiplies_fp8() { return true; }
std::string_view default_refusals() { return ""; }
void disturb_workspace(void*, size_t) {}

bool is_device_memory(const void*, size_t, std::string&) { return true; }
DeviceAccess::DeviceAccess() {}
DeviceAccess::~DeviceAccess() {}
void begin_device_thread() {}

cudaStream_t actual_stream(cudaStream_t stream) { return stream; }
bool has_blocking_streams() { return false; }
void before_append(cudaStream_t) {}

bool at_once(cudaStream_t stream) { return stream && stream->queued == 0 && device_error() == cudaSuccess; }

bool runs_in_call(cudaStream_t stream, std::function<void()>&, bool async) {
    if (stream->capture) return false;
    if (async && !stream->has_worker) {
        std::thread(drain, stream).detach();
        stream->has_worker = true;
    }
    return !async && !has_unfinished_work(stream);
}

void operation_added(const OperationPtr&) {}
void operation_ready(const OperationPtr&) {}

void operation_appended(cudaStream_t stream, const OperationPtr& operation) {
    ++stream->queued;
    stream->queue.push_back(operation);
    engine().changed.notify_all();
}

void wait_on_stream(Call& call, cudaStream_t stream, const OperationPtr& operation) {
    if (!stream->has_worker) return run_until_done(call.lock, OperationPtr(operation));
    stream->predecessors.push_back(operation);
    call.e.append(stream, call.what, nullptr);
}

cudaError_t launch_nodes(Call& call, const std::vector<GraphNode>& nodes, cudaStream_t stream) {
    call.lock.unlock();
    for (const GraphNode& node : nodes) {
        const cudaError_t status = node.work ? submit(stream, node.what, node.work) : cudaSuccess;
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

void run_until_done(std::unique_lock<std::mutex>& lock, const OperationPtr& target) {
    engine().changed.wait(lock, [&] { return target->done; });
}
void run_some(std::unique_lock<std::mutex>&) {}
void run_all(std::unique_lock<std::mutex>& lock) {
    engine().changed.wait(lock, [] { return engine().unfinished == 0; });
}

}  // namespace teon::cpu
