// Private to cpu/: operations, the order between them, and who runs them.
//
// Every piece of work is an operation with others that must be done before it. A stream is no more than the operations
// that its next one waits for; an event is an operation without work. A graph is a list of operations to be copied.
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
#include "cpu/devices.h"
#include "cpu/error.h"
#include "cpu/pages.h"

namespace teon::cpu {

using Clock = std::chrono::steady_clock;

struct Operation;
using OperationPtr = std::shared_ptr<Operation>;

struct Operation {
    const char* what;
    std::function<void()> work;             // none: a point in the order
    std::vector<OperationPtr> after;        // what must be done first, and is not
    std::vector<OperationPtr> before = {};  // what waits for this one
    bool done = false;
    Clock::time_point at = {};  // when it was done
    size_t place = 0;           // in Engine::ready
};

// What a capture has recorded so far: operations that are copied by each launch of the graph, and never run.
struct Capture {
    const cudaStream_t origin;
    const cudaStreamCaptureMode mode;
    const std::thread::id thread = std::this_thread::get_id();
    std::vector<OperationPtr> operations;  // each behind those that it waits for
    std::vector<cudaStream_t> streams;     // that take part
    const char* broken_by = nullptr;       // the call that has invalidated it
    bool ended = false;

    Capture(cudaStream_t origin, cudaStreamCaptureMode mode) : origin(origin), mode(mode), streams{origin} {}
    Capture(const Capture&) = delete;
    // Releases one operation at a time. Otherwise the last operation would release its predecessor, and so on, in a
    // recursion as deep as the capture is long.
    ~Capture() {
        for (const OperationPtr& operation : operations) operation->after.clear();
    }
};

struct Engine {
    std::mutex mutex;  // of everything here and of all streams and events
    std::condition_variable changed;
    std::unordered_set<const void*> alive;  // streams, events and graphs
    std::vector<std::shared_ptr<Capture>> captures;
    int64_t left = 0;                 // operations that are not done
    std::vector<OperationPtr> ready;  // modelled GPU: of these, the ones that wait for nothing
    bool running = false;             // modelled GPU: one of them is being run
    bool random = false;
    std::thread::id queued_by;  // the thread that queued last
    uint64_t seed = 0, state = 0;
    Clock::time_point last_call = Clock::now();
    bool watched = false;

    Engine();
    std::string set_order(const std::string& order);
    // Adds an operation behind what the stream holds, which may be a capture's.
    OperationPtr append(cudaStream_t stream, const char* what, std::function<void()> work);
    // Adds an operation behind others.
    OperationPtr add(std::vector<OperationPtr> after, const char* what, std::function<void()> work);
    void finish(const OperationPtr& operation);
    // Ends a capture: its streams are as before it began.
    void end(const std::shared_ptr<Capture>& capture);
    // The caller holds the mutex, which is released meanwhile.
    void run_until_done(std::unique_lock<std::mutex>& lock, const OperationPtr& target);
    void run_some(std::unique_lock<std::mutex>& lock);
    void run_all(std::unique_lock<std::mutex>& lock);

private:
    void run(std::unique_lock<std::mutex>& lock, OperationPtr operation);
    void watch();
};

// Never destroyed: threads may outlive main().
Engine& engine();

void execute(const Operation& operation) noexcept;

// What every call that takes a stream, event or graph begins with.
struct Call {
    Engine& e = engine();
    std::unique_lock<std::mutex> lock{e.mutex};
    const char* what;
    cudaError_t status;  // of the device, or why the handle is refused

    explicit Call(const char* what);
    Call(const char* what, const void* handle);
    // The call breaks this capture.
    cudaError_t breaks(Capture& capture, cudaError_t code);
};

}  // namespace teon::cpu

struct CUstream_st {
    const int device = teon::cpu::current_device();
    std::vector<teon::cpu::OperationPtr> after;  // what the next operation waits for
    std::shared_ptr<teon::cpu::Capture> capture;
    std::vector<teon::cpu::OperationPtr> after_capture;  // `after` of before it began
    std::atomic<int> queued = 0;  // ordinary build: operations that are not done, and 1 more during capture
    // Ordinary streams with asynchronous work: a thread that takes the operations in order.
    bool has_worker = false, destroyed = false;
    std::deque<teon::cpu::OperationPtr> queue;
};

struct CUevent_st {
    const int device = teon::cpu::current_device();
    bool timing = true, recorded = false;
    teon::cpu::OperationPtr operation;  // none: done at `at`
    teon::cpu::Clock::time_point at = {};
    std::shared_ptr<teon::cpu::Capture> capture;  // that it was recorded in
};
