#include "cpu/engine.h"

#include "base/integer.h"

#include <charconv>
#include <cstdlib>
#include <optional>

namespace teon::cpu {

namespace {

thread_local const char* on_this_thread = nullptr;  // work_in_progress, if this thread runs it

void parse_order(Engine& e, const std::string& order) {
    uint64_t seed = 0;
    const bool random = order.starts_with("random:") && order.size() > 7;
    const char* begin = order.data() + (random ? 7 : 0);
    const char* end = order.data() + order.size();
    const auto [rest, status] = std::from_chars(begin, end, seed);
    CHECK(order == "late" || (random && status == std::errc() && rest == end),
          "CUDA_ORDER is \"{}\"; it must be late or random:SEED, with SEED a non-negative integer", order);
    e.random = random;
    e.seed = e.state = seed;
}

// Returns an operation without predecessors that must run first for `target`, which may be target itself. Follows the
// predecessor added last, so that work of target's own stream comes last.
OperationPtr first_needed(OperationPtr target) {
    while (!target->predecessors.empty()) target = OperationPtr(target->predecessors.back());
    return target;
}

}  // namespace

Engine::Engine() {
    if (const char* order = kModelGpu ? std::getenv("CUDA_ORDER") : nullptr) parse_order(*this, order);
}

Engine& engine() {
    static auto* e = new Engine;
    return *e;
}

std::string Engine::set_order(const std::string& order) {
    const std::lock_guard lock(mutex);
    const std::string before = random ? fmt::format("random:{}", seed) : "late";
    parse_order(*this, order);
    return before;
}

// Runs the operation's work, unless device work has failed before.
void execute(const Operation& operation) noexcept {
    if (!operation.work || device_error() != cudaSuccess) return;
    const DeviceAccess access;
    work_in_progress = on_this_thread = operation.what;
    try {
        operation.work();
    } catch (const std::exception& error) { fail_device(cudaErrorLaunchFailure, error.what()); } catch (...) {
        fail_device(cudaErrorLaunchFailure,
                    fmt::format("{} threw something that is no std::exception", operation.what));
    }
    work_in_progress = on_this_thread = nullptr;
}

OperationPtr Engine::add(std::vector<OperationPtr> predecessors, const char* what, std::function<void()> work) {
    std::unordered_set<const Operation*> seen;
    std::erase_if(predecessors, [&](auto& earlier) { return earlier->done || !seen.insert(earlier.get()).second; });
    last_call = Clock::now();
    queued_by = std::this_thread::get_id();
    auto operation = std::make_shared<Operation>(Operation{what, std::move(work), std::move(predecessors)});
    for (const OperationPtr& earlier : operation->predecessors) earlier->successors.push_back(operation);
    ++left;
    if (kModelGpu && operation->predecessors.empty()) {
        operation->place = ready.size();
        ready.push_back(operation);
    }
    if (kModelGpu && !watched) {
        watched = true;
        std::thread([this] { watch(); }).detach();
    }
    return operation;
}

OperationPtr Engine::append(cudaStream_t stream, const char* what, std::function<void()> work) {
    OperationPtr operation;
    if (stream->capture) {
        operation = std::make_shared<Operation>(Operation{what, std::move(work), std::move(stream->predecessors)});
        stream->capture->operations.push_back(operation);
    } else {
        operation = add(std::move(stream->predecessors), what, std::move(work));
        if (!kModelGpu) {
            ++stream->queued;
            stream->queue.push_back(operation);
            changed.notify_all();
        }
    }
    stream->predecessors = {operation};
    return operation;
}

void Engine::finish(const OperationPtr& operation) {
    operation->done = true;
    operation->at = Clock::now();
    operation->work = nullptr;
    for (const OperationPtr& next : operation->successors) {
        std::erase(next->predecessors, operation);
        if (kModelGpu && next->predecessors.empty()) {
            next->place = ready.size();
            ready.push_back(next);
        }
    }
    operation->successors.clear();
    --left;
    changed.notify_all();
}

void Engine::end(const std::shared_ptr<Capture>& capture) {
    for (const cudaStream_t stream : capture->streams) {
        stream->capture = nullptr;
        stream->predecessors = std::move(stream->predecessors_before_capture);
        --stream->queued;
    }
    capture->ended = true;
    std::erase(captures, capture);
}

void Engine::run(std::unique_lock<std::mutex>& lock, OperationPtr operation) {
    std::swap(ready[operation->place], ready.back());
    ready[operation->place]->place = operation->place;
    ready.pop_back();
    running = true;
    lock.unlock();
    execute(*operation);
    lock.lock();
    running = false;
    last_call = Clock::now();
    finish(operation);
}

// Opens device memory once for all operations that a call runs, because opening it takes system calls.
void Engine::run_until_done(std::unique_lock<std::mutex>& lock, const OperationPtr& target) {
    std::optional<DeviceAccess> access;
    while (!target->done) {
        if (!kModelGpu || running) {
            access.reset();
            changed.wait(lock);
        } else {
            if (!access) access.emplace();
            run(lock, random ? ready[splitmix64(state) % ready.size()] : first_needed(target));
        }
    }
}

// Runs nothing in a thread that only polls (a watchdog): the time of its calls varies, and so would the order.
void Engine::run_some(std::unique_lock<std::mutex>& lock) {
    if (!kModelGpu || !random || queued_by != std::this_thread::get_id() || splitmix64(state) % 8 != 0) return;
    uint64_t n = splitmix64(state) % 16;
    if (n == 0 || running || ready.empty()) return;
    const DeviceAccess access;
    for (; n > 0 && !running && !ready.empty(); --n) run(lock, ready[splitmix64(state) % ready.size()]);
}

void Engine::run_all(std::unique_lock<std::mutex>& lock) {
    std::optional<DeviceAccess> access;
    while (left > 0) {
        if (!kModelGpu || running) {
            access.reset();
            changed.wait(lock);
        } else {
            if (!access) access.emplace();
            run(lock, ready[random ? splitmix64(state) % ready.size() : 0]);
        }
    }
}

void Engine::watch() {
    for (std::unique_lock lock(mutex);;) {
        changed.wait_for(lock, std::chrono::milliseconds(50));
        if (!running && Clock::now() - last_call > std::chrono::milliseconds(300)) run_all(lock);
    }
}

Call::Call(const char* what) : what(what), status(device_error()) {
    if (on_this_thread)
        status = fail(cudaErrorNotPermitted, fmt::format("{} was called from inside of {}", what, on_this_thread));
    else
        e.run_some(lock);
}

Call::Call(const char* what, const void* handle) : Call(what) {
    if (status == cudaSuccess && !e.alive.contains(handle))
        status = fail(cudaErrorInvalidResourceHandle,
                      fmt::format("{}: {}", what,
                                  handle ? "a stream, event or graph that does not exist"
                                         : "no stream is given, and the default stream is not used here"));
}

cudaError_t Call::breaks(Capture& capture, cudaError_t code) {
    if (!capture.broken_by) capture.broken_by = what;
    return fail(code, fmt::format("{} is not allowed while a stream is captured", what));
}

}  // namespace teon::cpu
