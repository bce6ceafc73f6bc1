// Behaviour of streams, copies and memory on the modelled GPU that the CPU's own runtime does not have: work runs late
// or in any legal order, and the memories of host and device are separate.
#include <algorithm>
#include <cmath>

#include "runtime/simt.h"
#include "test/model_gpu/model_gpu.h"
#include "test/support/catch.h"
#include "test/support/transfer.h"

using namespace teon;
using namespace teon::test;

namespace {

cudaStream_t cuda(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

__global__ void note_kernel(int* log, int what) {
    wait_for_earlier_kernels();
    log[1 + log[0]++] = what;
}

// The notes of kernels, in the order in which the kernels ran.
struct Log {
    Buffer<int> memory{100};

    explicit Log(const Stream& stream) {
        zero(memory.data(), memory.size(), stream);
        stream.synchronize();
    }
    void note(const Stream& stream, int what) { launch<note_kernel>({1, 1}, stream, memory.data(), what); }
    std::vector<int> read() const {
        check(cudaDeviceSynchronize());
        const std::vector<int> values = fetch(memory, Stream());
        return {values.begin() + 1, values.begin() + 1 + values[0]};
    }
    static void check(cudaError_t status) { REQUIRE(status == cudaSuccess); }
};

std::vector<std::string> orders() {
    std::vector<std::string> all = {"late"};
    for (int seed = 0; seed < 20; ++seed) all.push_back("random:" + std::to_string(seed));
    return all;
}

std::string words(cudaError_t status) { return status == cudaSuccess ? "" : cudaGetErrorString(status); }

}  // namespace

TEST_CASE("model_gpu/streams: a stream keeps its order, and events order streams") {
    NEEDS_MODEL_GPU();
    for (const std::string& order : orders()) {
        const ScopedOrder scope(order);
        Stream a;
        Stream b;
        Event after_a;
        Event after_b;
        Log log(a);
        log.note(a, 1);
        log.note(a, 2);
        after_a.record(a);
        log.note(a, 6);  // may run at any time from here on
        after_a.make_wait(b);
        log.note(b, 3);
        after_b.record(b);
        after_a.record(a);  // recorded again: waits that are queued already ignore it
        after_b.make_wait(a);
        log.note(a, 7);
        std::vector<int> values = log.read();
        std::erase(values, 6);
        REQUIRE(values == std::vector<int>{1, 2, 3, 7});
    }
}

TEST_CASE("model_gpu/streams: random orders differ, and the same seed makes the same choices") {
    NEEDS_MODEL_GPU();
    const auto run = [](const std::string& order) {
        const ScopedOrder scope(order);
        std::vector<Stream> streams(3);
        Log log(streams[0]);
        for (int i = 0; i < 30; ++i) log.note(streams[i % 3], i % 3);
        return log.read();
    };
    REQUIRE(run("random:1") == run("random:1"));
    REQUIRE(run("random:1") != run("random:2"));
    REQUIRE(run("random:1").size() == 30);
}

TEST_CASE("model_gpu/streams: late work runs when somebody waits for it, and no other work does") {
    NEEDS_MODEL_GPU();
    const ScopedOrder scope("late");
    Stream a;
    Stream b;
    Event event;
    Buffer<float> one(1);
    zero(one.data(), 1, a);
    a.synchronize();
    PinnedBuffer<float> before(1);
    PinnedBuffer<float> after(1);
    PinnedBuffer<float> beside(1);
    download(before.data(), one.data(), 1, a);
    event.record(a);
    download(after.data(), one.data(), 1, a);
    download(beside.data(), one.data(), 1, b);
    REQUIRE(!event.done());
    REQUIRE(cudaStreamQuery(cuda(a)) == cudaErrorNotReady);
    REQUIRE(std::isnan(before[0]));
    event.synchronize();
    REQUIRE(event.done());
    REQUIRE((before[0] == 0 && std::isnan(after[0]) && std::isnan(beside[0])));
    b.synchronize();
    REQUIRE((std::isnan(after[0]) && beside[0] == 0));
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(after[0] == 0);
}

TEST_CASE("model_gpu/streams: each launch of a graph runs all of it, in a legal order") {
    NEEDS_MODEL_GPU();
    for (const std::string& order : orders()) {
        const ScopedOrder scope(order);
        Stream a;
        Stream b;
        Event fork;
        Event join;
        Log log(a);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        REQUIRE(cudaStreamBeginCapture(cuda(a), cudaStreamCaptureModeGlobal) == cudaSuccess);
        log.note(a, 1);
        fork.record(a);
        fork.make_wait(b);
        log.note(b, 2);
        log.note(a, 9);
        join.record(b);
        join.make_wait(a);
        log.note(a, 3);
        REQUIRE(cudaStreamEndCapture(cuda(a), &graph) == cudaSuccess);
        REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        REQUIRE(log.read().empty());
        log.note(a, 0);
        for (int i = 0; i < 2; ++i) REQUIRE(cudaGraphLaunch(exec, cuda(a)) == cudaSuccess);
        log.note(a, 4);
        std::vector<int> values = log.read();
        REQUIRE(std::erase(values, 9) == 2);
        REQUIRE(values == std::vector<int>{0, 1, 2, 3, 1, 2, 3, 4});
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    }
}

TEST_CASE("model_gpu/streams: pinned memory is read and written late, pageable memory as documented") {
    NEEDS_MODEL_GPU();
    const ScopedOrder scope("late");
    Stream stream;
    Buffer<float> device(4);
    PinnedBuffer<float> pinned(4);
    std::vector<float> pageable(4);
    const auto fill = [](auto& memory, float value) { std::fill_n(memory.data(), 4, value); };

    fill(pinned, 1);
    upload(device.data(), pinned.data(), 4, stream);
    fill(pinned, 2);  // too early: the upload has not run
    download(pageable.data(), device.data(), 4, stream);
    REQUIRE(pageable == std::vector<float>(4, 2));  // the download is waited for

    fill(pageable, 3);
    upload(device.data(), pageable.data(), 4, stream);
    fill(pageable, 4);  // the upload has read its source already
    download(pinned.data(), device.data(), 4, stream);
    REQUIRE(std::isnan(pinned[0]));  // the download has not run
    stream.synchronize();
    REQUIRE(pinned[0] == 3);

    const bool before = model_gpu()->set_strict(true);
    upload(device.data(), pageable.data(), 4, stream);
    fill(pageable, 5);
    download(pinned.data(), device.data(), 4, stream);
    fill(pageable, 6);
    download(pageable.data(), device.data(), 4, stream);
    REQUIRE(std::isnan(pageable[0]));
    stream.synchronize();
    REQUIRE(pinned[0] != 4);
    model_gpu()->set_strict(before);
}

TEST_CASE("model_gpu/streams: a copy's memories are of the kinds that it names, and within an allocation") {
    NEEDS_MODEL_GPU();
    Stream stream;
    Buffer<float> a(10);
    Buffer<float> b(10);
    std::vector<float> host(10);
    const auto error = [&](void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
        return words(cudaMemcpyAsync(to, from, bytes, kind, cuda(stream)));
    };
    REQUIRE(error(a.data(), host.data(), 40, cudaMemcpyHostToDevice) == "");
    REQUIRE_THAT(error(host.data(), a.data(), 40, cudaMemcpyHostToDevice), ContainsSubstring("device memory is due"));
    REQUIRE_THAT(error(a.data(), host.data(), 40, cudaMemcpyDeviceToDevice), ContainsSubstring("pageable host memory"));
    REQUIRE_THAT(error(b.data(), a.data(), 40, cudaMemcpyDeviceToHost), ContainsSubstring("host memory is due"));
    REQUIRE_THAT(error(b.data() + 1, a.data(), 40, cudaMemcpyDeviceToDevice),
                 ContainsSubstring("40 bytes at byte 4 of an allocation of 40"));
    REQUIRE_THAT(error(a.data(), a.data() + 4, 20, cudaMemcpyDeviceToDevice), ContainsSubstring("overlap"));
    REQUIRE_THAT(words(cudaMemsetAsync(host.data(), 0, 40, cuda(stream))), ContainsSubstring("device memory is due"));
    float* gone = nullptr;
    {
        Buffer<float> c(10);
        gone = c.data();
    }
    REQUIRE_THAT(words(cudaMemsetAsync(gone, 0, 40, cuda(stream))), ContainsSubstring("that were freed"));
    Buffer<float> next(10);
    REQUIRE(next.data() != gone);
    (void)cudaGetLastError();
}

TEST_CASE("model_gpu/streams: freeing waits for what is queued, and is counted") {
    NEEDS_MODEL_GPU();
    const ScopedOrder scope("late");
    Stream stream;
    Buffer<float> device(1);
    PinnedBuffer<float> pinned(1);
    zero(device.data(), 1, stream);
    download(pinned.data(), device.data(), 1, stream);
    void* p = nullptr;
    REQUIRE(cudaMalloc(&p, 16) == cudaSuccess);
    const int64_t before = counters()->frees_that_wait;
    REQUIRE(std::isnan(pinned[0]));
    REQUIRE(cudaFree(p) == cudaSuccess);
    REQUIRE(pinned[0] == 0);
    REQUIRE(counters()->frees_that_wait == before + 1);
}
