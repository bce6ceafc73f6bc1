// Plants faults of host code that a GPU would show rarely or not at all into small functions that work like the
// trainer's. On the modelled GPU each fault must cause the expected error, and the same function without the fault must
// pass in every order. (Faults in kernels: gpusim/test/plant_faults.py.)
//
// A function that cannot continue after its fault runs in a process of its own: this program with TEON_FAULT=name.
#include <cuda_runtime.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/context.h"
#include "runtime/simt.h"
#include "runtime/tensor_cores/warpgroup.h"
#include "test/model_gpu/model_gpu.h"
#include "test/support/catch.h"
#include "test/support/transfer.h"

using namespace teon;

namespace {

constexpr int kN = 1000;

__global__ void add_kernel(float* out, const float* in, float x, int n) {
    wait_for_earlier_kernels();
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = in[i] + x;
}

__global__ void fill_kernel(float* out, float x, int n) {
    wait_for_earlier_kernels();
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = x;
}

__global__ void dynamic_kernel(float* out) {
    wait_for_earlier_kernels();
    DYN_SHARED(float, row);
    row[threadIdx.x] = 1.0f;
    out[threadIdx.x] = row[threadIdx.x];
}

// The modelled GPU does not know bmsk.
__global__ void unknown_kernel(float* out) {
    wait_for_earlier_kernels();
    unsigned mask = 0;
    asm("bmsk.clamp.b32 %0, 0, 1;" : "=r"(mask));
    out[0] = static_cast<float>(mask);
}

void fill(float* out, float x, int n, const Stream& stream) {
    launch<fill_kernel>({(n + 255) / 256, 256}, stream, out, x, n);
}
void add(float* out, const float* in, float x, int n, const Stream& stream) {
    launch<add_kernel>({(n + 255) / 256, 256}, stream, out, in, x, n);
}

void expect(const float* values, int n, float value) {
    for (int i = 0; i < n; ++i)
        CHECK(values[i] == value, "wrong result: element {} is {}, not {}", i, values[i], value);
}

void check(cudaError_t status) {
    CHECK(status == cudaSuccess, "{} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
}

cudaStream_t cuda(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

// ---- missing waits -------------------------------------------------------------------------------------------------

// Reads a step's metrics back through pinned memory.
void read_metrics(bool planted) {
    Stream stream;
    Event end;
    Buffer<float> loss(1);
    PinnedBuffer<float> metrics(1);
    for (int step = 1; step <= 3; ++step) {
        fill(loss.data(), static_cast<float>(step), 1, stream);
        download(metrics.data(), loss.data(), 1, stream);
        end.record(stream);
        if (!planted) end.synchronize();
        expect(metrics.data(), 1, static_cast<float>(step));
    }
}

// Copies batches through kSlots pinned and device buffers on a stream for copies, as the loader does. Each fault leaves
// out one wait or record.
enum class Wait { none, host_for_copy, copy_for_use, use_for_copy, recorded };
template <Wait PLANTED>
void load(bool planted) {
    const Wait missing = planted ? PLANTED : Wait::none;
    Stream stream;
    Stream copies;
    constexpr int kSlots = 2;
    constexpr int kBatches = 8;
    struct Slot {
        PinnedBuffer<float> pinned{kN};
        Buffer<float> device{kN};
        Event copied, passed;
    } slots[kSlots];
    std::vector<Buffer<float>> results;
    for (int batch = 0; batch < kBatches; ++batch) results.emplace_back(kN);
    for (int batch = 0; batch < kBatches; ++batch) {
        Slot& slot = slots[batch % kSlots];
        if (missing != Wait::host_for_copy) slot.copied.synchronize();  // before the host overwrites the copy's source
        std::fill_n(slot.pinned.data(), kN, static_cast<float>(batch));
        if (missing != Wait::copy_for_use) slot.passed.make_wait(copies);
        upload(slot.device.data(), slot.pinned.data(), kN, copies);
        if (missing != Wait::recorded) slot.copied.record(copies);
        if (missing != Wait::use_for_copy) slot.copied.make_wait(stream);
        add(results[batch].data(), slot.device.data(), 1.0f, kN, stream);
        slot.passed.record(stream);
    }
    for (int batch = 0; batch < kBatches; ++batch)
        expect(test::fetch(results[batch], stream).data(), kN, static_cast<float>(batch + 1));
    copies.synchronize();
}

// Moves the activations that blocks save to the host and back through buffers that the blocks use in turn, for two
// micro-batches, as ActivationOffload does. Each fault leaves out one wait.
enum class Move { none, computed, stored, fetched, freed };
template <Move PLANTED>
void offload(bool planted) {
    const Move missing = planted ? PLANTED : Move::none;
    Stream compute;
    Stream copies;
    constexpr int kBlocks = 6;
    constexpr int kBuffers = 2;
    constexpr int kOffloaded = kBlocks - kBuffers;
    constexpr int kPasses = 2;
    Buffer<float> buffers[kBuffers] = {Buffer<float>(kN), Buffer<float>(kN)};
    std::vector<PinnedBuffer<float>> host;
    for (int block = 0; block < kOffloaded; ++block) host.emplace_back(kN);
    Event computed;
    Event moved[kOffloaded];
    const auto wait_for_compute = [&](Move wait) {
        if (missing == wait) return;
        computed.record(compute);
        computed.make_wait(copies);
    };
    std::vector<Buffer<float>> results;
    for (int i = 0; i < kPasses * kBlocks; ++i) results.emplace_back(kN);
    for (int pass = 0; pass < kPasses; ++pass) {
        for (int block = 0; block < kBlocks; ++block) {
            if (block >= kBuffers && missing != Move::stored) moved[block - kBuffers].make_wait(compute);
            fill(buffers[block % kBuffers].data(), static_cast<float>(10 * pass + block), kN, compute);
            if (block >= kOffloaded) continue;
            wait_for_compute(Move::computed);
            download(host[block].data(), buffers[block % kBuffers].data(), kN, copies);
            moved[block].record(copies);
        }
        for (int block = kBlocks - 1; block >= 0; --block) {
            if (block < kOffloaded && missing != Move::fetched) moved[block].make_wait(compute);
            add(results[pass * kBlocks + block].data(), buffers[block % kBuffers].data(), 1.0f, kN, compute);
            if (block < kBuffers) continue;
            wait_for_compute(Move::freed);
            upload(buffers[block % kBuffers].data(), host[block - kBuffers].data(), kN, copies);
            moved[block - kBuffers].record(copies);
        }
    }
    for (int pass = 0; pass < kPasses; ++pass)
        for (int block = 0; block < kBlocks; ++block)
            expect(test::fetch(results[pass * kBlocks + block], compute).data(), kN,
                   static_cast<float>(10 * pass + block + 1));
    copies.synchronize();
}

// Another stream (a communicator's) changes gradients in place between the backward pass and the optimizer.
// Each fault leaves out one wait.
enum class Order { begin, join };
template <Order PLANTED>
void exchange(bool planted) {
    const bool begin = !planted || PLANTED != Order::begin;
    const bool join = !planted || PLANTED != Order::join;
    Stream stream;
    Stream own_stream;
    Event ready;
    Event done;
    Buffer<float> gradients(kN);
    Buffer<float> weights(kN);
    fill(gradients.data(), 0.0f, kN, stream);
    stream.synchronize();
    fill(gradients.data(), 1.0f, kN, stream);
    if (begin) {
        ready.record(stream);
        ready.make_wait(own_stream);
    }
    add(gradients.data(), gradients.data(), 2.0f, kN, own_stream);
    if (join) {
        done.record(own_stream);
        done.make_wait(stream);
    }
    add(weights.data(), gradients.data(), 0.0f, kN, stream);
    expect(test::fetch(weights, stream).data(), kN, 3.0f);
    own_stream.synchronize();
}

// ---- memory --------------------------------------------------------------------------------------------------------

void host_read(bool planted) {
    Stream stream;
    Buffer<float> weights(kN);
    fill(weights.data(), 1.0f, kN, stream);
    stream.synchronize();
    if (planted)
        expect(weights.data(), kN, 1.0f);
    else
        expect(test::fetch(weights, stream).data(), kN, 1.0f);
}

void host_write(bool planted) {
    Stream stream;
    Buffer<float> weights(kN);
    if (planted)
        std::fill_n(weights.data(), kN, 1.0f);
    else
        fill(weights.data(), 1.0f, kN, stream);
    expect(test::fetch(weights, stream).data(), kN, 1.0f);
}

void freed_early(bool planted) {
    Stream stream;
    Buffer<float> result(kN);
    const bool strict = test::model_gpu()->set_strict(true);
    {
        Buffer<float> scratch(kN);
        fill(scratch.data(), 1.0f, kN, stream);
        add(result.data(), scratch.data(), 1.0f, kN, stream);
        if (!planted) stream.synchronize();
    }
    expect(test::fetch(result, stream).data(), kN, 2.0f);
    test::model_gpu()->set_strict(strict);
}

void freed_twice(bool planted) {
    void* p = nullptr;
    check(cudaMalloc(&p, 16));
    check(cudaFree(p));
    if (planted) check(cudaFree(p));
}

// Launches a kernel for more elements than there are.
void beyond_the_end(bool planted) {
    Stream stream;
    Buffer<float> a(1024);  // ends at the end of a page, so that alignment hides nothing
    fill(a.data(), 1.0f, planted ? 1025 : 1024, stream);
    stream.synchronize();
}

// Likewise, within the bytes that alignment adds.
void into_the_padding(bool planted) {
    Stream stream;
    {
        Buffer<float> a(kN);
        fill(a.data(), 1.0f, planted ? kN + 1 : kN, stream);
        stream.synchronize();
    }
    stream.synchronize();
}

void wrong_direction(bool planted) {
    Stream stream;
    Buffer<float> a(kN);
    std::vector<float> host(kN, 1.0f);
    if (planted)
        download(host.data(), host.data(), kN, stream);
    else
        upload(a.data(), host.data(), kN, stream);
    stream.synchronize();
}

void straight_from_mapped(bool planted) {
    Stream stream;
    const OffloadableBuffer<float> state(kN, true);
    const Buffer<float> on_device(kN);
    PinnedBuffer<float> saved(kN);
    zero(state.data(), kN, stream);
    if (!planted) copy(on_device.data(), state.data(), kN, stream);
    download(saved.data(), planted ? state.data() : on_device.data(), kN, stream);
    stream.synchronize();
    REQUIRE(saved[kN - 1] == 0);
}

// Reads pageable memory as if its download had been waited for.
void pageable_download(bool planted) {
    Stream stream;
    Buffer<float> a(kN);
    const bool strict = test::model_gpu()->set_strict(true);
    std::vector<float> host(kN);
    fill(a.data(), 1.0f, kN, stream);
    download(host.data(), a.data(), kN, stream);
    if (!planted) stream.synchronize();
    const std::vector<float> seen = host;
    stream.synchronize();
    test::model_gpu()->set_strict(strict);
    expect(seen.data(), kN, 1.0f);
}

// ---- capture and limits --------------------------------------------------------------------------------------------

// Other calls that a capture forbids: test/cpu/test_stream.cpp, which tests the same code.
void pageable_in_capture(bool planted) {
    Stream stream;
    Buffer<float> a(1);
    std::vector<float> pageable(1);
    PinnedBuffer<float> pinned(1);
    const Graph graph(stream, [&] { upload(a.data(), planted ? pageable.data() : pinned.data(), 1, stream); });
}

void shared_memory_unasked(bool planted) {
    Stream stream;
    Buffer<float> out(32);
    constexpr size_t kBytes = 64 * 1024;
    if (!planted) check(cudaFuncSetAttribute(dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    dynamic_kernel<<<1, 32, kBytes, cuda(stream)>>>(out.data());
    check(cudaGetLastError());
    stream.synchronize();
    check(cudaFuncSetAttribute(dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 0));
}

void more_shared_memory(bool planted) {
    Stream stream;
    Buffer<float> out(32);
    launch<dynamic_kernel>({1, 32, planted ? size_t{128} << 10 : size_t{64} << 10}, stream, out.data());
    stream.synchronize();
}

// Chooses between two kernels as attention does. Code that has a fault must not be taken for no code.
void chosen_by_code(bool planted) {
    Stream stream;
    Buffer<float> out(kN);
    if (!(planted ? has_warpgroup_code<unknown_kernel>() : has_warpgroup_code<fill_kernel>()))
        fill(out.data(), 1.0f, kN, stream);
    expect(test::fetch(out, stream).data(), kN, 1.0f);
}

// Launches a kernel as a thread that has not chosen its device would.
void other_device(bool planted) {
    Stream stream;
    Buffer<float> out(kN);
    if (planted) set_device(1);
    fill(out.data(), 1.0f, kN, stream);
    stream.synchronize();
}

struct Fault {
    const char* name;
    const char* message_part;  // part of the error that the fault causes
    void (*program)(bool planted);
    bool ends_process = false;
    const char* environment = "";  // of that process
};

constexpr Fault kFaults[] = {
    {"metrics read before the step's end", "wrong result", read_metrics},
    {"an upload's source overwritten", "wrong result", load<Wait::host_for_copy>},
    {"a batch copied over one in use", "wrong result", load<Wait::copy_for_use>},
    {"a batch used before it is copied", "wrong result", load<Wait::use_for_copy>},
    {"an event waited for but never recorded", "wrong result", load<Wait::recorded>},
    {"activations stored before they are computed", "wrong result", offload<Move::computed>},
    {"activations overwritten before they are stored", "wrong result", offload<Move::stored>},
    {"activations used before they are fetched", "wrong result", offload<Move::fetched>},
    {"activations fetched over those in use", "wrong result", offload<Move::freed>},
    {"gradients exchanged before they are ready", "wrong result", exchange<Order::begin>},
    {"gradients used before they are exchanged", "wrong result", exchange<Order::join>},
    {"device memory read by the host", "the host touches byte 0 of an allocation of 4000 bytes", host_read, true},
    {"device memory written by the host", "the host touches byte 0 of an allocation of 4000 bytes", host_write, true},
    {"scratch freed while a kernel needs it", "which is in no allocation", freed_early},
    {"memory freed twice", "already freed", freed_twice},
    {"a kernel beyond the end", "byte 4096 of an allocation of 4096", beyond_the_end},
    {"a kernel beyond the end, within the alignment", "byte 4000 of an allocation of 4000", into_the_padding},
    {"a copy in the wrong direction", "a copy from host to host", wrong_direction},
    {"offloaded state copied straight to pinned memory", "for which the host would wait", straight_from_mapped},
    {"a pageable download not waited for", "wrong result", pageable_download},
    {"a pageable copy during capture", "pageable memory during capture", pageable_in_capture},
    {"more than 48 KiB of shared memory unasked", "0 were granted", shared_memory_unasked},
    {"more shared memory than the device has", "a block has 101376", more_shared_memory, true, "CUDA_DEVICE=RTX4090"},
    {"code with a fault taken for none", "asking for the code of unknown_kernel", chosen_by_code},
    {"a kernel on a stream of another device", "stream is of device 0", other_device, true, "CUDA_VISIBLE_DEVICES=0,1"},
};

// Runs the function with its fault in this order. Returns the error or the process's output, "" if nothing fails.
std::string find(const Fault& fault, const std::string& order) {
    test::model_gpu()->set_order(order);
    if (!fault.ends_process) {
        const std::string message = test::error_of([&] { fault.program(true); });
        (void)cudaDeviceSynchronize();
        test::model_gpu()->forget_device_error();
        (void)cudaGetLastError();
        test::model_gpu()->set_strict(false);
        return message;
    }
    const std::string command = fmt::format(
        "{} TEON_TEST_LOG= TEON_FAULT='{}' /proc/{}/exe 'model_gpu/faults: the one that TEON_FAULT names' 2>&1",
        fault.environment, fault.name, getpid());
    std::FILE* output = popen(command.c_str(), "r");
    std::string text;
    for (char buffer[4096]; const size_t n = std::fread(buffer, 1, sizeof buffer, output);) text.append(buffer, n);
    return pclose(output) == 0 ? "" : text;
}

}  // namespace

TEST_CASE("model_gpu/faults: planted ones are found by name, and without them every order passes") {
    NEEDS_MODEL_GPU();
    const test::ScopedOrder scope("late");
    for (const Fault& fault : kFaults) {
        INFO(fault.name);
        for (const char* order : {"random:1", "random:2", "random:3", "late"}) {
            test::model_gpu()->set_order(order);
            fault.program(false);
        }
        REQUIRE_THAT(find(fault, "late"), test::ContainsSubstring(fault.message_part));
    }
}

TEST_CASE("model_gpu/faults: a device error within a profiled scope is thrown") {
    NEEDS_MODEL_GPU();
    {
        Stream stream;
        Buffer<float> a(kN);
        Profiler profiler(stream);
        REQUIRE_THAT(test::error_of([&] {
                         const ProfileScope scope(stream, [] { return "fails"; });  // its end cannot be recorded
                         fill(a.data(), 1.0f, 2 * kN, stream);
                         stream.synchronize();
                     }),
                     test::ContainsSubstring("of an allocation of 4000"));
        REQUIRE_THROWS_AS(profiler.result(), Error);
    }
    test::model_gpu()->forget_device_error();
    (void)cudaGetLastError();
}

TEST_CASE("model_gpu/faults: the one that TEON_FAULT names", "[.]") {
    const char* name = std::getenv("TEON_FAULT");
    for (const Fault& fault : kFaults)
        if (name && fault.name == std::string(name)) fault.program(true);
}
