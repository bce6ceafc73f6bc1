// The calls that a capture forbids to other threads, as NVIDIA's "CUDA Runtime API" documents them under
// cudaThreadExchangeStreamCaptureMode.
#include <cuda_runtime.h>

#include <thread>

#include "runtime/cuda/device.h"
#include "test/support/catch.h"

using namespace teon;

TEST_CASE("model_gpu/capture_mode: a thread that asks an event breaks another's capture, unless its mode is relaxed") {
    const Stream own_stream;
    const auto stream = static_cast<cudaStream_t>(own_stream.handle());
    Event event;
    event.record(own_stream);
    own_stream.synchronize();
    Buffer<float> x(10);
    for (bool relaxed : {true, false}) {
        REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
        cudaError_t status = cudaSuccess;
        cudaStreamCaptureMode before = cudaStreamCaptureModeRelaxed;
        std::thread([&] {
            if (relaxed) cudaThreadExchangeStreamCaptureMode(&before);
            try {
                status = event.done() ? cudaSuccess : cudaErrorNotReady;
            } catch (const Error&) { status = cudaErrorStreamCaptureUnsupported; }
        }).join();
        REQUIRE(status == (relaxed ? cudaSuccess : cudaErrorStreamCaptureUnsupported));
        if (relaxed) REQUIRE(before == cudaStreamCaptureModeGlobal);
        zero(x.data(), relaxed ? 10 : 0, own_stream);
        cudaGraph_t graph = nullptr;
        REQUIRE(cudaStreamEndCapture(stream, &graph) == (relaxed ? cudaSuccess : cudaErrorStreamCaptureInvalidated));
        if (graph) cudaGraphDestroy(graph);
        (void)cudaGetLastError();
    }
}
