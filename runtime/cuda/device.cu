// Devices, memory and streams by the CUDA runtime (NVIDIA's or cpu/'s).
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstring>

#include "runtime/cuda/cuda_check.h"
#include "runtime/cuda/device.h"
#include "runtime/vec.h"

namespace teon {

namespace {

using detail::check_cuda;

cudaStream_t cuda(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

std::atomic<size_t> bytes_in_use = 0;
std::atomic<size_t> bytes_peak = 0;  // of live Buffers

}  // namespace

// Also 0 if the driver is missing or too old; require_device() reports the reason.
int device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return count;
}

void require_device() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    CHECK(status != cudaErrorMemoryAllocation, "{}", cudaGetErrorString(status));
    CHECK(count > 0, "no usable GPU was found{}; build with BACKEND=cpu to run on the CPU",
          status == cudaSuccess ? "" : fmt::format(" ({})", cudaGetErrorString(status)));
}

void set_device(int index) {
    CHECK(index >= 0 && index < device_count(), "device {} does not exist: this machine has {}", index, device_count());
    check_cuda(cudaSetDevice(index), "choosing the device");
}

DeviceInfo device_info() {
    int index = 0;
    check_cuda(cudaGetDevice(&index), "finding the device");
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, index), "describing the device");
    DeviceInfo info;
    info.name = properties.name;
    info.is_gpu = properties.major > 0;
    info.multiprocessors = properties.multiProcessorCount;
    info.block_shared_bytes = properties.sharedMemPerBlockOptin;
    info.compute_capability = 10 * properties.major + properties.minor;
    check_cuda(cudaMemGetInfo(&info.free_bytes, &info.total_bytes), "asking for free memory");
    info.peak_bf16_flops = peak_bf16_flops(info.name);
    return info;
}

DeviceInfo device_of(const GpuSheet& gpu) {
    const size_t memory = static_cast<size_t>(gpu.memory_mib) << 20;
    return {gpu.title, true,   gpu.multiprocessors, gpu.capability, gpu.block_shared(),
            memory,    memory, gpu.tflops * 1e12};
}

const char* backend_name() { return kGpu ? "cuda" : "cpu"; }
size_t device_bytes_in_use() { return bytes_in_use; }
size_t device_bytes_peak() { return bytes_peak; }

// Not ordered with the legacy default stream, which nothing here uses.
Stream::Stream(bool urgent) {
    cudaStream_t stream = nullptr;
    int least = 0;
    int greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least),
               "making a stream");
    handle_ = decltype(handle_)(stream);
}
void Stream::synchronize() const { check_cuda(cudaStreamSynchronize(cuda(*this)), "waiting for the device"); }

static cudaEvent_t cuda(const detail::Handle<void*, detail::destroy_event>& event) {
    return static_cast<cudaEvent_t>(event.get());
}

Event::Event() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreate(&event), "making an event");
    handle_ = decltype(handle_)(event);
}
void Event::record(const Stream& stream) {
    check_cuda(cudaEventRecord(cuda(handle_), cuda(stream)), "recording an event");
}
void Event::synchronize() const { check_cuda(cudaEventSynchronize(cuda(handle_)), "waiting for an event"); }
bool Event::done() const {
    cudaError_t status = cudaEventQuery(cuda(handle_));
    if (status == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
    }
    check_cuda(status, "asking an event");
    return true;
}
void Event::make_wait(const Stream& stream) const {
    check_cuda(cudaStreamWaitEvent(cuda(stream), cuda(handle_), 0), "making a stream wait");
}
double Event::milliseconds(const Event& from, const Event& to) {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, cuda(from.handle_), cuda(to.handle_)), "reading a clock");
    return ms;
}

// Restricts only this thread to the calls that a capture allows: other threads may load data and write files meanwhile.
Graph::Capture::Capture(const Stream& stream) : stream_(&stream) {
    check_cuda(cudaStreamBeginCapture(cuda(stream), cudaStreamCaptureModeThreadLocal), "beginning a graph");
}
Graph::Capture::~Capture() {
    cudaGraph_t graph = nullptr;
    if (!stream_) return;
    if (cudaStreamEndCapture(cuda(*stream_), &graph) == cudaSuccess) cudaGraphDestroy(graph);
    (void)cudaGetLastError();
}
void* Graph::Capture::end() {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(cuda(*std::exchange(stream_, nullptr)), &graph), "noting a graph");
    cudaGraphExec_t ready = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "making a graph ready");
    return ready;
}
void Graph::launch(const Stream& stream) const {
    check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_.get()), cuda(stream)), "launching a graph");
}

namespace detail {

void destroy_stream(void* stream) { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }
void destroy_event(void* event) { cudaEventDestroy(static_cast<cudaEvent_t>(event)); }
void destroy_graph(void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

void* device_allocate(size_t bytes) {
    void* p = nullptr;  // cudaMalloc aligns to 256 bytes
    const cudaError_t status = cudaMalloc(&p, bytes);
    if (status != cudaErrorMemoryAllocation) {
        check_cuda(status, "allocating device memory");  // throws if earlier work has failed
    } else {
        (void)cudaGetLastError();
        size_t free_bytes = 0;
        size_t total = 0;
        (void)cudaMemGetInfo(&free_bytes, &total);
        throw OutOfMemory(fmt::format("out of device memory: {} bytes wanted, {} of {} free, {} in use by this program",
                                      bytes, free_bytes, total, bytes_in_use.load()));
    }
    const size_t now = bytes_in_use += bytes;
    for (size_t peak = bytes_peak; peak < now && !bytes_peak.compare_exchange_weak(peak, now);) {}
    return p;
}

void device_free(void* p, size_t bytes) noexcept {
    bytes_in_use -= bytes;
    cudaFree(p);
}

// Fails if there is no external profiler, which does not matter.
void mark_profiled_range(bool on) { (void)(on ? cudaProfilerStart() : cudaProfilerStop()); }

static void check_pinned(cudaError_t status, size_t bytes) {
    if (status != cudaErrorMemoryAllocation) return check_cuda(status, "allocating pinned memory");
    (void)cudaGetLastError();
    throw OutOfMemory(fmt::format("out of pinned host memory: {} bytes wanted", bytes));
}

void* pinned_allocate(size_t bytes) {
    void* p = nullptr;
    check_pinned(cudaMallocHost(&p, bytes), bytes);
    return p;
}
void pinned_free(void* p, size_t) noexcept { cudaFreeHost(p); }

// With unified addressing, as on every 64-bit system, mapped memory has the same address on the device and the host.
void* mapped_allocate(size_t bytes) {
    void* p = nullptr;
    void* device = nullptr;
    check_pinned(cudaHostAlloc(&p, bytes, cudaHostAllocMapped), bytes);
    const cudaError_t status = cudaHostGetDevicePointer(&device, p, 0);
    if (status == cudaSuccess && device == p) return p;
    cudaFreeHost(p);
    check_cuda(status, "mapping host memory");
    throw Error("host memory has another address on the device: it has no unified addressing");
}
void mapped_free(void* p, size_t) noexcept { cudaFreeHost(p); }

}  // namespace detail

namespace {

// cudaMemcpyDefault takes the kinds of memory from the addresses: device memory may be mapped host memory.
void copy_async(void* dst, const void* src, size_t bytes, const Stream& stream) {
    if (bytes) check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda(stream)), "copying");
}

}  // namespace

void copy_bytes(void* dst, const void* src, size_t bytes, const Stream& stream) { copy_async(dst, src, bytes, stream); }
void upload_bytes(void* dst, const void* src, size_t bytes, const Stream& stream) {
    copy_async(dst, src, bytes, stream);
}
void download_bytes(void* dst, const void* src, size_t bytes, const Stream& stream) {
    copy_async(dst, src, bytes, stream);
}
void fill_bytes(void* dst, int byte, size_t bytes, const Stream& stream) {
    if (bytes) check_cuda(cudaMemsetAsync(dst, byte, bytes, cuda(stream)), "filling memory");
}

}  // namespace teon
