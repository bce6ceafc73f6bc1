// Tests streams, events and graphs of cpu/; test/model_gpu/test_streams.cu tests those of the modelled GPU.
#include "cpu/stream.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "cpu/error.h"
#include "runtime/cuda/device.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::cpu;
using teon::test::ContainsSubstring;

namespace {

cudaStream_t cuda(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

struct Event_t {
    cudaEvent_t event = nullptr;
    Event_t() { cudaEventCreate(&event); }
    ~Event_t() { cudaEventDestroy(event); }
    operator cudaEvent_t() const { return event; }
};

std::string words(cudaError_t status) { return status == cudaSuccess ? "" : cudaGetErrorString(status); }

}  // namespace

TEST_CASE("cpu/stream: a stream keeps its order, and events order streams") {
    Stream a;
    Stream b;
    Event_t after_a;
    Event_t after_b;
    std::vector<int> log;
    const auto note = [&](const Stream& stream, int what) {
        REQUIRE(enqueue(cuda(stream), "note", [&log, what] { log.push_back(what); }) == cudaSuccess);
    };
    note(a, 1);
    note(a, 2);
    cudaEventRecord(after_a, cuda(a));
    note(a, 6);  // may run at any time from here on
    cudaStreamWaitEvent(cuda(b), after_a);
    note(b, 3);
    cudaEventRecord(after_b, cuda(b));
    cudaEventRecord(after_a, cuda(a));  // recorded again: does not affect earlier waits
    cudaStreamWaitEvent(cuda(a), after_b);
    note(a, 7);
    REQUIRE(cudaStreamSynchronize(cuda(a)) == cudaSuccess);
    std::erase(log, 6);
    REQUIRE(log == std::vector<int>{1, 2, 3, 7});
}

TEST_CASE("cpu/stream: queued work completes without a wait") {
    Stream stream;
    std::atomic<int> done = 0;
    Event_t event;
    enqueue(cuda(stream), "work", [&] { ++done; });
    cudaEventRecord(event, cuda(stream));
    while (cudaEventQuery(event) == cudaErrorNotReady) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    REQUIRE(done == 1);
}

TEST_CASE("cpu/stream: asynchronous work keeps the stream's order, and other streams wait for it") {
    Stream beside;
    Stream stream;
    Event_t event;
    std::vector<int> log;
    std::atomic<bool> looked = false;
    enqueue_async(cuda(beside), "slow", [&] {
        looked.wait(false);
        log.push_back(1);
    });
    enqueue(cuda(beside), "then", [&] { log.push_back(2); });
    cudaEventRecord(event, cuda(beside));
    const bool finished = cudaEventQuery(event) == cudaSuccess;
    const std::jthread release([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        looked = true;
        looked.notify_one();
    });
    cudaStreamWaitEvent(cuda(stream), event);
    enqueue(cuda(stream), "last", [&] { log.push_back(3); });
    REQUIRE_FALSE(finished);
    REQUIRE(cudaStreamSynchronize(cuda(stream)) == cudaSuccess);
    REQUIRE(log == std::vector<int>{1, 2, 3});
}

TEST_CASE("cpu/stream: after a failure of the device every call returns it with its message") {
    Stream stream;
    Stream idle;
    Event_t event;
    int later = 0;
    enqueue_async(cuda(stream), "bad", [] { throw Error("kernel bad, block (0, 0, 0): broken"); });
    enqueue(cuda(stream), "later", [&] { ++later; });
    REQUIRE(cudaStreamSynchronize(cuda(stream)) == cudaErrorLaunchFailure);
    REQUIRE(later == 0);
    REQUIRE(words(cudaErrorLaunchFailure) == "kernel bad, block (0, 0, 0): broken");
    REQUIRE(cudaGetLastError() == cudaErrorLaunchFailure);
    REQUIRE(cudaGetLastError() == cudaErrorLaunchFailure);
    REQUIRE(cudaEventRecord(event, cuda(stream)) == cudaErrorLaunchFailure);
    void* p = nullptr;
    REQUIRE(cudaMalloc(&p, 16) == cudaErrorLaunchFailure);
    cudaStream_t unmade = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&unmade, cudaStreamNonBlocking) == cudaErrorLaunchFailure);
    REQUIRE(unmade == nullptr);
    REQUIRE(submit(cuda(idle), "later", [&] { ++later; }) == cudaErrorLaunchFailure);
    REQUIRE(later == 0);
    REQUIRE_THROWS_WITH(stream.synchronize(), ContainsSubstring("kernel bad"));
    forget_device_error();
    (void)cudaGetLastError();
    REQUIRE(cudaStreamSynchronize(cuda(stream)) == cudaSuccess);
}

TEST_CASE("cpu/stream: the error of a call is returned once, and its message says what was wrong") {
    Stream stream;
    REQUIRE(cudaEventRecord(nullptr, cuda(stream)) == cudaErrorInvalidResourceHandle);
    REQUIRE(cudaPeekAtLastError() == cudaErrorInvalidResourceHandle);
    REQUIRE(cudaGetLastError() == cudaErrorInvalidResourceHandle);
    REQUIRE(cudaGetLastError() == cudaSuccess);
    REQUIRE_THAT(words(cudaErrorInvalidResourceHandle), ContainsSubstring("an event that does not exist"));
    REQUIRE(std::string(cudaGetErrorName(cudaErrorNotReady)) == "cudaErrorNotReady");
    Event_t never;
    Event_t recorded;
    float ms = 0;
    REQUIRE(cudaEventElapsedTime(&ms, never, never) == cudaErrorInvalidResourceHandle);
    REQUIRE(cudaEventQuery(never) == cudaSuccess);
    REQUIRE(cudaEventSynchronize(never) == cudaSuccess);
    REQUIRE(enqueue(nullptr, "work", [] {}) == cudaErrorInvalidResourceHandle);
    REQUIRE_THAT(words(cudaErrorInvalidResourceHandle), ContainsSubstring("default stream"));
    cudaStream_t gone = nullptr;
    cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking);
    cudaStreamDestroy(gone);
    REQUIRE(cudaStreamWaitEvent(gone, recorded) == cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
}

TEST_CASE("cpu/stream: work of a destroyed stream completes") {
    int done = 0;
    {
        Stream stream;
        enqueue(cuda(stream), "work", [&] { ++done; });
    }
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(done == 1);
}

TEST_CASE("cpu/graph: a capture runs nothing, and each launch of its graph runs all of it in order") {
    Stream a;
    Stream b;
    Event_t fork;
    Event_t join;
    std::vector<int> log;
    const auto note = [&](const Stream& stream, int what) {
        return enqueue(cuda(stream), "note", [&log, what] { log.push_back(what); });
    };
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    REQUIRE(cudaStreamBeginCapture(cuda(a), cudaStreamCaptureModeGlobal) == cudaSuccess);
    note(a, 1);
    cudaEventRecord(fork, cuda(a));
    cudaStreamWaitEvent(cuda(b), fork);
    cudaStreamCaptureStatus status{};
    REQUIRE(cudaStreamIsCapturing(cuda(b), &status) == cudaSuccess);
    REQUIRE(status == cudaStreamCaptureStatusActive);
    note(b, 2);
    note(a, 9);
    cudaEventRecord(join, cuda(b));
    cudaStreamWaitEvent(cuda(a), join);
    note(a, 3);
    REQUIRE(cudaStreamEndCapture(cuda(a), &graph) == cudaSuccess);
    REQUIRE(cudaStreamIsCapturing(cuda(b), &status) == cudaSuccess);
    REQUIRE(status == cudaStreamCaptureStatusNone);
    REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
    cudaDeviceSynchronize();
    REQUIRE(log.empty());
    note(a, 0);
    for (int i = 0; i < 2; ++i) REQUIRE(cudaGraphLaunch(exec, cuda(a)) == cudaSuccess);
    note(a, 4);
    cudaStreamSynchronize(cuda(a));
    REQUIRE(std::count(log.begin(), log.end(), 9) == 2);
    std::erase(log, 9);
    REQUIRE(log == std::vector<int>{0, 1, 2, 3, 1, 2, 3, 4});
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    REQUIRE(cudaGraphLaunch(exec, cuda(a)) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("cpu/graph: a call that a capture forbids fails with its name in the message, and invalidates the capture") {
    struct Row {
        const char* what;
        cudaError_t error;
        cudaError_t (*call)(const Stream& stream, cudaEvent_t event);
    };
    const Row rows[] = {
        {"cudaStreamSynchronize", cudaErrorStreamCaptureUnsupported,
         [](const Stream& s, cudaEvent_t) { return cudaStreamSynchronize(cuda(s)); }},
        {"cudaStreamQuery", cudaErrorStreamCaptureUnsupported,
         [](const Stream& s, cudaEvent_t) { return cudaStreamQuery(cuda(s)); }},
        {"cudaDeviceSynchronize", cudaErrorStreamCaptureUnsupported,
         [](const Stream&, cudaEvent_t) { return cudaDeviceSynchronize(); }},
        {"cudaMalloc", cudaErrorStreamCaptureUnsupported,
         [](const Stream&, cudaEvent_t) {
             void* p;
             return cudaMalloc(&p, 16);
         }},
        {"cudaFree", cudaErrorStreamCaptureUnsupported,
         [](const Stream&, cudaEvent_t) { return cudaFree(reinterpret_cast<void*>(256)); }},
        {"cudaEventQuery", cudaErrorStreamCaptureUnsupported,
         [](const Stream& s, cudaEvent_t e) {
             cudaEventRecord(e, cuda(s));
             return cudaEventQuery(e);
         }},
        {"cudaEventSynchronize", cudaErrorStreamCaptureUnsupported,
         [](const Stream& s, cudaEvent_t e) {
             cudaEventRecord(e, cuda(s));
             return cudaEventSynchronize(e);
         }},
        {"cudaStreamWaitEvent", cudaErrorStreamCaptureIsolation,
         [](const Stream& s, cudaEvent_t e) {
             Stream other;
             cudaEventRecord(e, cuda(other));
             return cudaStreamWaitEvent(cuda(s), e);
         }},
    };
    for (const Row& row : rows) {
        CAPTURE(row.what);
        Stream stream;
        Event_t event;
        REQUIRE(cudaStreamBeginCapture(cuda(stream), cudaStreamCaptureModeGlobal) == cudaSuccess);
        const cudaError_t status = row.call(stream, event);
        REQUIRE(status == row.error);
        REQUIRE_THAT(words(status), ContainsSubstring(row.what));
        REQUIRE(enqueue(cuda(stream), "more", [] {}) == cudaErrorStreamCaptureInvalidated);
        cudaGraph_t graph = nullptr;
        REQUIRE(cudaStreamEndCapture(cuda(stream), &graph) == cudaErrorStreamCaptureInvalidated);
        REQUIRE_THAT(words(cudaErrorStreamCaptureInvalidated), ContainsSubstring(row.what));
        REQUIRE(cudaStreamSynchronize(cuda(stream)) == cudaSuccess);
    }
    (void)cudaGetLastError();
}

TEST_CASE("cpu/graph: the stack does not limit the length of a capture") {
    Stream stream;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    int64_t runs = 0;
    constexpr int kOperations = 300000;
    REQUIRE(cudaStreamBeginCapture(cuda(stream), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    for (int i = 0; i < kOperations; ++i) enqueue(cuda(stream), "work", [&] { ++runs; });
    REQUIRE(cudaStreamEndCapture(cuda(stream), &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
    REQUIRE(cudaGraphLaunch(exec, cuda(stream)) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(cuda(stream)) == cudaSuccess);
    REQUIRE(runs == kOperations);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

TEST_CASE("cpu/graph: an event of a capture that has ended cannot be waited for, and the stream still runs work") {
    Stream captured;
    Stream other;
    Event_t event;
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(cuda(captured), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    cudaEventRecord(event, cuda(captured));
    REQUIRE(cudaStreamEndCapture(cuda(captured), &graph) == cudaSuccess);
    cudaGraphDestroy(graph);
    REQUIRE(cudaStreamWaitEvent(cuda(other), event) == cudaErrorCapturedEvent);
    REQUIRE_THAT(words(cudaErrorCapturedEvent), ContainsSubstring("cudaStreamWaitEvent"));
    int done = 0;
    REQUIRE(enqueue(cuda(other), "work", [&] { ++done; }) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(cuda(other)) == cudaSuccess);
    REQUIRE(done == 1);
    REQUIRE(cudaEventRecord(event, cuda(captured)) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(cuda(other), event) == cudaSuccess);
}

TEST_CASE("cpu/graph: destroying a capture's streams ends or invalidates the capture") {
    Event_t fork;
    cudaGraph_t graph = nullptr;
    void* p = nullptr;
    auto* origin = new Stream;
    REQUIRE(cudaStreamBeginCapture(cuda(*origin), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    Stream forked;
    cudaEventRecord(fork, cuda(*origin));
    REQUIRE(cudaStreamWaitEvent(cuda(forked), fork) == cudaSuccess);
    delete origin;
    REQUIRE(cudaStreamSynchronize(cuda(forked)) == cudaSuccess);
    REQUIRE(cudaMalloc(&p, 16) == cudaSuccess);
    REQUIRE(cudaFree(p) == cudaSuccess);

    Stream next;
    REQUIRE(cudaStreamBeginCapture(cuda(next), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    {
        Stream gone;
        cudaEventRecord(fork, cuda(next));
        REQUIRE(cudaStreamWaitEvent(cuda(gone), fork) == cudaSuccess);
    }
    Stream successor;  // may have the address of the destroyed stream
    REQUIRE(cudaStreamEndCapture(cuda(next), &graph) == cudaErrorStreamCaptureInvalidated);
    REQUIRE_THAT(words(cudaErrorStreamCaptureInvalidated), ContainsSubstring("cudaStreamDestroy"));
    REQUIRE(at_once(cuda(successor)));
    (void)cudaGetLastError();
}

TEST_CASE("cpu/graph: captures end on the stream and thread that began them, with every stream joined") {
    Stream a;
    Stream b;
    Event_t fork;
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(cuda(a), &graph) == cudaErrorStreamCaptureUnmatched);
    cudaStreamBeginCapture(cuda(a), cudaStreamCaptureModeThreadLocal);
    REQUIRE(cudaStreamBeginCapture(cuda(a), cudaStreamCaptureModeGlobal) == cudaErrorInvalidValue);
    cudaError_t other_thread = cudaSuccess;
    std::thread([&] { other_thread = cudaStreamEndCapture(cuda(a), &graph); }).join();
    REQUIRE(other_thread == cudaErrorStreamCaptureWrongThread);
    cudaEventRecord(fork, cuda(a));
    cudaStreamWaitEvent(cuda(b), fork);
    enqueue(cuda(b), "forked work", [] {});
    REQUIRE(cudaStreamEndCapture(cuda(b), &graph) == cudaErrorStreamCaptureUnmatched);
    REQUIRE(cudaStreamEndCapture(cuda(a), &graph) == cudaErrorStreamCaptureUnjoined);
    REQUIRE_THAT(words(cudaErrorStreamCaptureUnjoined), ContainsSubstring("forked work"));
    REQUIRE(cudaStreamSynchronize(cuda(b)) == cudaSuccess);
    (void)cudaGetLastError();
}
