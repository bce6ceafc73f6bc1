#include "cpu/engine.h"

#include <algorithm>

namespace teon::cpu {

namespace {

thread_local const char* on_this_thread = nullptr;  // the operation that this thread runs

}  // namespace

Engine& engine() {
    static auto* e = new Engine;
    return *e;
}

void execute(const Operation& operation) noexcept {
    if (!operation.work || device_error() != cudaSuccess) return;
    on_this_thread = operation.what;
    try {
        operation.work();
    } catch (const std::exception& error) { fail_device(cudaErrorLaunchFailure, error.what()); } catch (...) {
        fail_device(cudaErrorLaunchFailure,
                    fmt::format("{} threw something that is no std::exception", operation.what));
    }
    on_this_thread = nullptr;
}

bool has_unfinished_work(cudaStream_t stream) {
    return std::ranges::any_of(stream->predecessors, [](const OperationPtr& operation) { return !operation->done; });
}

OperationPtr Engine::add(std::vector<OperationPtr> predecessors, const char* what, std::function<void()> work) {
    std::unordered_set<const Operation*> seen;
    std::erase_if(predecessors, [&](auto& earlier) { return earlier->done || !seen.insert(earlier.get()).second; });
    auto operation = std::make_shared<Operation>(Operation{what, std::move(work), std::move(predecessors)});
    for (const OperationPtr& earlier : operation->predecessors) earlier->successors.push_back(operation);
    ++unfinished;
    operation_added(operation);
    return operation;
}

OperationPtr Engine::append(cudaStream_t stream, const char* what, std::function<void()> work) {
    OperationPtr operation;
    if (stream->capture) {
        operation = std::make_shared<Operation>(Operation{what, std::move(work), std::move(stream->predecessors)});
        stream->capture->operations.push_back(operation);
    } else {
        before_append(stream);
        operation = add(std::move(stream->predecessors), what, std::move(work));
        operation_appended(stream, operation);
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
        if (next->predecessors.empty()) operation_ready(next);
    }
    operation->successors.clear();
    --unfinished;
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

Call::Call(const char* what) : what(what), status(device_error()) {
    if (on_this_thread)
        status = fail(cudaErrorNotPermitted, "{} was called from inside of {}", what, on_this_thread);
    else
        run_some(lock);
}

Call::Call(const char* what, const void* handle) : Call(what) {
    if (status == cudaSuccess && !e.alive.contains(handle))
        status = fail(cudaErrorInvalidResourceHandle, "{}: {}", what,
                      handle ? "a stream, event or graph that does not exist"
                             : "no stream is given, and the default stream is not used here "
                               "(docs/modelled_gpu.md, CUDA_DEFAULT_STREAM)");
}

cudaError_t Call::breaks(Capture& capture, cudaError_t code) {
    if (!capture.broken_by) capture.broken_by = what;
    return fail(code, "{} is not allowed while a stream is captured", what);
}

}  // namespace teon::cpu
