// Private to cpu/ and to a device under it (hardware.h): operations and the order between them.
//
// Every piece of work is an operation with a list of predecessors. A stream is the list of predecessors of its next
// operation; an event is an operation without work. A graph is a list of operations that each launch copies.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "cpu/error.h"
#include "cpu/hardware.h"

namespace teon::cpu {

using Clock = std::chrono::steady_clock;

struct Operation {
    const char* what;
    std::function<void()> work;                 // empty: only a point in the order
    std::vector<OperationPtr> predecessors;     // that are not done
    std::vector<OperationPtr> successors = {};  // that wait for this operation
    bool done = false;
    Clock::time_point at = {};  // the time when it was done
    size_t place = 0;           // for the device: index in its list of operations without predecessors
};

// The operations that a capture has recorded so far. They never run; each launch of the graph runs copies of them.
struct Capture {
    const cudaStream_t origin;
    const cudaStreamCaptureMode mode;
    const std::thread::id thread = std::this_thread::get_id();
    std::vector<OperationPtr> operations;  // each after its predecessors
    std::vector<cudaStream_t> streams;     // that are part of the capture
    const char* broken_by = nullptr;       // the call that invalidated the capture
    bool ended = false;

    Capture(cudaStream_t origin, cudaStreamCaptureMode mode) : origin(origin), mode(mode), streams{origin} {}
    Capture(const Capture&) = delete;
    // Releases one operation at a time. Otherwise the last operation would release its predecessor, and so on, in a
    // recursion as deep as the capture is long.
    ~Capture() {
        for (const OperationPtr& operation : operations) operation->predecessors.clear();
    }
};

struct Engine {
    std::mutex mutex;  // guards all members and all streams and events
    std::condition_variable changed;
    std::unordered_set<const void*> alive;  // streams, events and graphs
    std::vector<std::shared_ptr<Capture>> captures;
    std::vector<cudaStream_t> blocking;  // streams that wait for the default stream, and it for them
    int64_t unfinished = 0;              // operations that are not done

    // Adds an operation to the end of the stream or, during capture, to the stream's capture.
    OperationPtr append(cudaStream_t stream, const char* what, std::function<void()> work);
    // Adds an operation with these predecessors.
    OperationPtr add(std::vector<OperationPtr> predecessors, const char* what, std::function<void()> work);
    void finish(const OperationPtr& operation);
    // Ends a capture, and returns its streams to their state before it.
    void end(const std::shared_ptr<Capture>& capture);
};

// An operation of a graph. Predecessors are given by their index, which is lower than its own.
struct GraphNode {
    const char* what;
    std::function<void()> work;
    std::vector<size_t> predecessors;
};

// Never destroyed: threads may outlive main().
Engine& engine();

// Runs the operation's work, unless device work has failed before.
void execute(const Operation& operation) noexcept;
bool has_unfinished_work(cudaStream_t stream);

// Begins every call that takes a stream, event or graph: locks the engine and checks the device and the handle.
struct Call {
    Engine& e = engine();
    std::unique_lock<std::mutex> lock{e.mutex};
    const char* what;
    cudaError_t status;  // the device's error, or the reason to refuse the handle

    explicit Call(const char* what);
    Call(const char* what, const void* handle);
    // Fails with `code` because of this capture, and invalidates it.
    cudaError_t breaks(Capture& capture, cudaError_t code);
};

}  // namespace teon::cpu

struct CUstream_st {
    const int device = teon::cpu::current_device();
    std::vector<teon::cpu::OperationPtr> predecessors;  // of the next operation
    std::shared_ptr<teon::cpu::Capture> capture;
    std::vector<teon::cpu::OperationPtr> predecessors_before_capture;
    std::atomic<int> queued = 0;  // on a CPU: operations that are not done, and 1 more during capture
    // On a CPU, a stream with asynchronous work has a worker thread that runs its operations in order.
    bool has_worker = false, destroyed = false;
    std::deque<teon::cpu::OperationPtr> queue;
};

struct CUevent_st {
    const int device = teon::cpu::current_device();
    bool timing = true, recorded = false;
    teon::cpu::OperationPtr operation;  // null: done at `at`
    teon::cpu::Clock::time_point at = {};
    std::shared_ptr<teon::cpu::Capture> capture;  // in which it was recorded
};
