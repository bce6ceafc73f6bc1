// Stream capture and graphs.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "cpu/engine.h"
#include "cpu/stream.h"

using namespace teon::cpu;

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
    std::unordered_map<const Operation*, size_t> indices;
    while (!from.empty()) {
        const OperationPtr operation = std::move(from.back());
        from.pop_back();
        if (indices.emplace(operation.get(), 0).second)
            from.insert(from.end(), operation->predecessors.begin(), operation->predecessors.end());
    }
    size_t index = 0;
    for (const OperationPtr& operation : capture.operations)
        if (const auto it = indices.find(operation.get()); it != indices.end()) it->second = index++;
    return indices;
}

}  // namespace

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    const Call call("cudaStreamIsCapturing", stream);
    if (call.status != cudaSuccess) return call.status;
    *status = cudaStreamCaptureStatusNone;
    if (stream->capture)
        *status = stream->capture->broken_by ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
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
    const auto indices = reachable(*capture, stream->predecessors);
    call.e.end(capture);
    if (capture->broken_by)
        return fail(cudaErrorStreamCaptureInvalidated, "cudaStreamEndCapture: the capture was broken by {}",
                    capture->broken_by);
    auto made = std::make_unique<CUgraph_st>();
    for (const OperationPtr& operation : capture->operations) {
        if (!indices.contains(operation.get())) {
            if (!operation->work) continue;  // an event that no operation waits for
            return fail(cudaErrorStreamCaptureUnjoined,
                        "cudaStreamEndCapture: {} was captured on a stream that the captured one does not "
                        "wait for",
                        operation->what);
        }
        made->nodes.push_back({operation->what, operation->work, {}});
        for (const OperationPtr& earlier : operation->predecessors)
            made->nodes.back().predecessors.push_back(indices.at(earlier.get()));
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
    return launch_nodes(call, exec->nodes, stream);
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
