// Stream capture and graphs.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "cpu/engine.h"
#include "cpu/stream.h"

using namespace teon::cpu;

// An operation of a graph. Predecessors are given by their index, which is lower than its own.
struct GraphNode {
    const char* what;
    std::function<void()> work;
    std::vector<size_t> predecessors;
};
struct CUgraph_st {
    std::vector<GraphNode> nodes;
};
struct CUgraphExec_st {
    std::vector<GraphNode> nodes;
};

namespace {

// Returns the operations `from` of a capture and their direct and indirect predecessors, each with its index in a graph
// of these operations.
std::unordered_map<const Operation*, size_t> reachable(const Capture& capture, std::vector<OperationPtr> from) {
    std::unordered_map<const Operation*, size_t> found;
    while (!from.empty()) {
        const OperationPtr operation = std::move(from.back());
        from.pop_back();
        if (found.emplace(operation.get(), 0).second)
            from.insert(from.end(), operation->predecessors.begin(), operation->predecessors.end());
    }
    size_t index = 0;
    for (const OperationPtr& operation : capture.operations)
        if (const auto it = found.find(operation.get()); it != found.end()) it->second = index++;
    return found;
}

}  // namespace

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    const Call call("cudaStreamIsCapturing", stream);
    if (call.status != cudaSuccess) return call.status;
    *status = !stream->capture             ? cudaStreamCaptureStatusNone
              : stream->capture->broken_by ? cudaStreamCaptureStatusInvalidated
                                           : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    Call call("cudaStreamBeginCapture", stream);
    if (call.status != cudaSuccess) return call.status;
    if (stream->capture) return fail(cudaErrorInvalidValue, "cudaStreamBeginCapture: the stream is captured already");
    stream->capture = std::make_shared<Capture>(stream, mode);
    stream->predecessors_before_capture = std::exchange(stream->predecessors, {});
    ++stream->queued;
    call.e.captures.push_back(stream->capture);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    Call call("cudaStreamEndCapture", stream);
    *graph = nullptr;
    if (call.status != cudaSuccess) return call.status;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture || capture->origin != stream)
        return fail(cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture: no capture was begun on this stream");
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
        return fail(cudaErrorStreamCaptureWrongThread, "cudaStreamEndCapture: another thread began this capture");
    const auto found = reachable(*capture, stream->predecessors);
    call.e.end(capture);
    if (capture->broken_by)
        return fail(cudaErrorStreamCaptureInvalidated,
                    fmt::format("cudaStreamEndCapture: the capture was broken by {}", capture->broken_by));
    auto made = std::make_unique<CUgraph_st>();
    for (const OperationPtr& operation : capture->operations) {
        if (!found.contains(operation.get())) {
            if (!operation->work) continue;  // an event that no operation waits for
            return fail(cudaErrorStreamCaptureUnjoined,
                        fmt::format("cudaStreamEndCapture: {} was captured on a stream that the captured one does not "
                                    "wait for",
                                    operation->what));
        }
        made->nodes.push_back({operation->what, operation->work, {}});
        for (const OperationPtr& earlier : operation->predecessors)
            made->nodes.back().predecessors.push_back(found.at(earlier.get()));
    }
    *graph = made.release();
    call.e.alive.insert(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    Call call("cudaGraphInstantiate", graph);
    if (call.status != cudaSuccess) return call.status;
    *exec = new CUgraphExec_st{graph->nodes};
    call.e.alive.insert(*exec);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    Call call("cudaGraphLaunch", stream);
    if (call.status == cudaSuccess && !call.e.alive.contains(exec))
        call.status = fail(cudaErrorInvalidResourceHandle, "cudaGraphLaunch: a graph that does not exist");
    if (call.status != cudaSuccess) return call.status;
    if (stream->capture) return call.breaks(*stream->capture, cudaErrorStreamCaptureUnsupported);
    if (!kModelGpu) {
        call.lock.unlock();
        for (const GraphNode& node : exec->nodes)
            if (const cudaError_t status = node.work ? submit(stream, node.what, node.work) : cudaSuccess)
                return status;
        return cudaSuccess;
    }
    const std::vector<OperationPtr> of_stream = stream->predecessors;
    std::vector<OperationPtr> added;
    for (const GraphNode& node : exec->nodes) {
        std::vector<OperationPtr> predecessors;
        for (const size_t i : node.predecessors) predecessors.push_back(added[i]);
        added.push_back(call.e.add(node.predecessors.empty() ? of_stream : predecessors, node.what, node.work));
    }
    stream->predecessors.insert(stream->predecessors.end(), added.begin(), added.end());
    call.e.append(stream, call.what, nullptr);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    Call call("cudaGraphDestroy", graph);
    if (call.e.alive.erase(graph)) delete graph;
    return call.status;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    Call call("cudaGraphExecDestroy", exec);
    if (call.e.alive.erase(exec)) delete exec;
    return call.status;
}
