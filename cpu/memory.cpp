#include "cpu/memory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/integer.h"
#include "cpu/address_space.h"
#include "cpu/cgroup.h"
#include "cpu/counts.h"
#include "cpu/devices.h"
#include "cpu/error.h"
#include "cpu/pages.h"
#include "cpu/stream.h"

namespace teon::cpu {

namespace {

constexpr int64_t kPlanned = int64_t{128} << 20;  // of the libraries, which every plan counts itself (plan/memory.cpp)

size_t total_memory() { return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE); }

// Returns the bytes that the system can provide without swapping and a container's limit allows.
size_t available_memory() {
    size_t system = total_memory();
    std::ifstream in("/proc/meminfo");
    for (std::string key, rest; in >> key && std::getline(in, rest);)
        if (key == "MemAvailable:") system = std::strtoull(rest.c_str(), nullptr, 10) * 1024;
    return std::min<size_t>(system, cgroup_limits().memory_left.value_or(system));
}

// Returns whether the system has the memory for a request. Checks only large requests: the system would grant more than
// it has, and end the program later.
bool is_available(size_t bytes) { return bytes <= 64 << 20 || dry_run() || bytes <= available_memory(); }

std::atomic<bool>& strict() {
    static std::atomic<bool> on = std::string(std::getenv("CUDA_STRICT") ? std::getenv("CUDA_STRICT") : "0") != "0";
    return on;
}

void* allocate(size_t bytes, Memory kind) {
    if (!is_available(bytes)) return nullptr;
    if constexpr (kModelGpu) return allocate_pages(bytes, kind, current_device());
    void* p = std::aligned_alloc(kAlignment, round_up(bytes, kAlignment));
    if (p && kind != Memory::pinned) std::memset(p, kNaN, bytes);  // exposes reads of uninitialized memory
    return p;
}

cudaError_t allocate(const char* what, void** p, size_t bytes, Memory kind) {
    *p = nullptr;
    if (const cudaError_t status = refuse_in_capture(what)) return status;
    if (bytes == 0) return cudaSuccess;
    *p = allocate(bytes, kind);
    if (!*p) return fail(cudaErrorMemoryAllocation, "out of memory");
    ++counters.allocations;
    return cudaSuccess;
}

// Waits for the device, like cudaFree, except in strict mode, which finds work that still uses the memory.
cudaError_t release(const char* what, void* p, bool pinned) {
    if (!p) return cudaSuccess;
    if (const cudaError_t status = refuse_in_capture(what); status != device_error()) return status;
    if constexpr (!kModelGpu) {
        run_everything();
        std::free(p);
        ++counters.frees;
        return device_error();
    }
    if (!strict() && run_everything()) ++counters.frees_that_wait;
    ++counters.frees;
    return release_pages(what, p, pinned);
}

const char* name(Memory kind) {
    return kind == Memory::device   ? "device memory"
           : kind == Memory::mapped ? "mapped host memory"
           : kind == Memory::pinned ? "pinned host memory"
                                    : "pageable host memory";
}

// Mapped memory counts as device memory, because its address is a device pointer.
bool is_device(Memory kind) { return kind == Memory::device || kind == Memory::mapped; }

// Returns the kind of a copy between these addresses.
cudaMemcpyKind kind_of(const void* to, const void* from, size_t bytes) {
    std::string why;
    const bool to_device = is_device(memory_kind(to, bytes, why));
    const bool from_device = is_device(memory_kind(from, bytes, why));
    return to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                     : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
}

// Fails unless the memory is of the kind that the call requires. A GPU detects such a mistake or misbehaves.
cudaError_t check(const char* what, const void* p, size_t bytes, bool device) {
    std::string why;
    const Memory kind = memory_kind(p, bytes, why);
    if (!why.empty()) return fail(cudaErrorInvalidValue, fmt::format("{}: {}", what, why));
    if (is_device(kind) == device) return cudaSuccess;
    return fail(cudaErrorInvalidValue,
                fmt::format("{}: {} where {} is due", what, name(kind), device ? "device memory" : "host memory"));
}

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
    const auto* x = static_cast<const char*>(a);
    const auto* y = static_cast<const char*>(b);
    return x < y + b_bytes && y < x + a_bytes;
}

// Ranges of pinned memory that queued copies to the device will read. The ranges of captured copies are never removed,
// because any launch of their graph queues the copies again.
struct QueuedUploads {
    std::mutex mutex;
    std::multiset<std::pair<const void*, size_t>> ranges;

    void add(const void* from, size_t bytes) {
        const std::lock_guard lock(mutex);
        ranges.emplace(from, bytes);
    }
    void remove(const void* from, size_t bytes) {
        const std::lock_guard lock(mutex);
        ranges.erase(ranges.find({from, bytes}));
    }
    bool read(const void* p, size_t bytes) {
        const std::lock_guard lock(mutex);
        return std::ranges::any_of(ranges, [&](const auto& r) { return overlap(r.first, r.second, p, bytes); });
    }
};
QueuedUploads& queued_uploads() {
    static auto* all = new QueuedUploads;  // never destroyed: threads may outlive main()
    return *all;
}

}  // namespace

bool set_strict(bool on) { return strict().exchange(on); }

}  // namespace teon::cpu

using namespace teon::cpu;

cudaError_t cudaMalloc(void** p, size_t bytes) { return allocate("cudaMalloc", p, bytes, Memory::device); }
cudaError_t cudaFree(void* p) { return release("cudaFree", p, false); }
cudaError_t cudaMallocHost(void** p, size_t bytes) { return allocate("cudaMallocHost", p, bytes, Memory::pinned); }
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned flags) {
    if (flags != cudaHostAllocMapped) return fail(cudaErrorInvalidValue, "cudaHostAlloc: only cudaHostAllocMapped");
    return allocate("cudaHostAlloc", p, bytes, Memory::mapped);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
    *device = host;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) { return release("cudaFreeHost", p, true); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = dry_run() ? size_t{1} << 40 : total_memory();
    *free = dry_run() ? *total : std::min(available_memory(), *total);
    if (const std::optional<int64_t> left = address_space_left(); left && !kModelGpu)
        *free = std::min<size_t>(*free, std::max<int64_t>(*left - address_space_of_libraries() + kPlanned, 0));
    return device_error();
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
    if constexpr (kModelGpu)
        if (const cudaError_t status = check("cudaMemsetAsync", to, bytes, true)) return status;
    return submit(stream, "cudaMemsetAsync", [=] { std::memset(to, byte, bytes); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (kModelGpu && kind == cudaMemcpyDefault) kind = kind_of(to, from, bytes);
    const char* const what = kind == cudaMemcpyHostToDevice   ? "cudaMemcpyAsync (host to device)"
                             : kind == cudaMemcpyDeviceToHost ? "cudaMemcpyAsync (device to host)"
                             : kind == cudaMemcpyDefault      ? "cudaMemcpyAsync"
                                                              : "cudaMemcpyAsync (device to device)";
    if constexpr (!kModelGpu) return submit(stream, what, [=] { std::memmove(to, from, bytes); });
    const bool to_device = kind != cudaMemcpyDeviceToHost;
    const bool from_device = kind != cudaMemcpyHostToDevice;
    if (kind == cudaMemcpyHostToHost) return fail(cudaErrorInvalidMemcpyDirection, "a copy from host to host");
    if (const cudaError_t status = check(what, to, bytes, to_device)) return status;
    if (const cudaError_t status = check(what, from, bytes, from_device)) return status;
    if (overlap(to, bytes, from, bytes)) return fail(cudaErrorInvalidValue, fmt::format("{}: the two overlap", what));
    std::string why;
    const bool pageable = !to_device    ? memory_kind(to, bytes, why) == Memory::pageable
                          : from_device ? false
                                        : memory_kind(from, bytes, why) == Memory::pageable;
    if (pageable && is_capturing(stream))
        return fail(cudaErrorStreamCaptureUnsupported, fmt::format("{}: pageable memory during capture", what));
    if (pageable && to_device && !strict()) {  // staged before the call returns
        const auto* bytes_now = static_cast<const char*>(from);
        const auto staged = std::make_shared<const std::vector<char>>(bytes_now, bytes_now + bytes);
        return enqueue(stream, what, [=] { std::memcpy(to, staged->data(), bytes); });
    }
    const bool captured = is_capturing(stream);
    const bool reads_pinned = to_device && !from_device && !pageable;
    if (reads_pinned) queued_uploads().add(from, bytes);
    if (!to_device && !captured && !queued_uploads().read(to, bytes))
        std::memset(to, kNaN, bytes);  // undefined until the copy is done
    const auto copy = [=] {
        std::memcpy(to, from, bytes);
        if (reads_pinned && !captured) queued_uploads().remove(from, bytes);
    };
    if (const cudaError_t status = enqueue(stream, what, copy)) return status;
    if (!pageable || to_device || strict()) return cudaSuccess;
    ++counters.pageable_waits;
    return wait_for(stream, what);
}
