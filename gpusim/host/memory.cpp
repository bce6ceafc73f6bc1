// Device memory of the modelled GPU: protected pages, and copies under the documentation's rules.
#include "gpusim/host/memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/check.h"
#include "cpu/counts.h"
#include "cpu/error.h"
#include "cpu/stream.h"
#include "cpu/system_memory.h"
#include "gpusim/host/pages.h"

using namespace teon::cpu;

namespace teon::gpusim {

namespace {

std::atomic<bool>& strict() {
    static std::atomic<bool> on = std::string(std::getenv("CUDA_STRICT") ? std::getenv("CUDA_STRICT") : "0") != "0";
    return on;
}

cudaError_t allocate(const char* what, void** p, size_t bytes, Memory kind) {
    *p = nullptr;
    if (const cudaError_t status = refuse_in_capture(what)) return status;
    if (bytes == 0) return cudaSuccess;
    if (dry_run() || has_memory(bytes)) *p = allocate_pages(bytes, kind, current_device());
    if (!*p) return fail(cudaErrorMemoryAllocation, "out of memory");
    ++counters.allocations;
    return cudaSuccess;
}

// Waits for the device, like cudaFree, except in strict mode, which finds work that still uses the memory.
cudaError_t release(const char* what, void* p, bool pinned) {
    if (!p) return cudaSuccess;
    if (const cudaError_t status = refuse_in_capture(what); status != device_error()) return status;
    if (!strict() && run_everything()) ++counters.frees_that_wait;
    ++counters.frees;
    return release_pages(what, p, pinned);
}

const char* name(Memory kind) {
    switch (kind) {
        case Memory::device:
            return "device memory";
        case Memory::mapped:
            return "mapped host memory";
        case Memory::pinned:
            return "pinned host memory";
        case Memory::pageable:
            return "pageable host memory";
    }
    return "";
}

// Mapped memory counts as device memory, because its address is a device pointer.
bool is_device(Memory kind) { return kind == Memory::device || kind == Memory::mapped; }

// Returns the kind of a copy between these addresses.
cudaMemcpyKind kind_of(const void* to, const void* from, size_t bytes) {
    std::string why;
    const bool to_device = is_device(memory_kind(to, bytes, why));
    const bool from_device = is_device(memory_kind(from, bytes, why));
    if (to_device) return from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
    return from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
}

// Whether a copy that looks asynchronous, because all its memory is pinned, is one from host to host: mapped memory has
// a device pointer and is the host's. The calling thread waits for such a copy and for the work before it (CUDA Runtime
// API, "API synchronization behavior").
bool hosts_wait(const void* to, const void* from, size_t bytes) {
    std::string why;
    const auto pinned = [](Memory kind) { return kind == Memory::mapped || kind == Memory::pinned; };
    return pinned(memory_kind(to, bytes, why)) && pinned(memory_kind(from, bytes, why));
}

// Fails unless the memory is of the kind that the call requires. A GPU detects such a mistake or misbehaves.
cudaError_t check(const char* what, const void* p, size_t bytes, bool device) {
    std::string why;
    const Memory kind = memory_kind(p, bytes, why);
    if (!why.empty()) return fail(cudaErrorInvalidValue, "{}: {}", what, why);
    if (is_device(kind) == device) return cudaSuccess;
    return fail(cudaErrorInvalidValue, "{}: {} where {} is due", what, name(kind),
                device ? "device memory" : "host memory");
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

// The parts of a copy that its checks need.
struct CopySides {
    bool to_device, from_device, pageable;
};

// Fails unless the documentation allows this copy.
cudaError_t check_copy(const char* what, void* to, const void* from, size_t bytes, CopySides& sides) {
    if (const cudaError_t status = check(what, to, bytes, sides.to_device)) return status;
    if (const cudaError_t status = check(what, from, bytes, sides.from_device)) return status;
    if (overlap(to, bytes, from, bytes)) return fail(cudaErrorInvalidValue, "{}: the two overlap", what);
    std::string why;
    const bool on_device = sides.to_device && sides.from_device;
    const void* const host = sides.to_device ? from : to;
    sides.pageable = !on_device && memory_kind(host, bytes, why) == Memory::pageable;
    return cudaSuccess;
}

const char* name(cudaMemcpyKind kind) {
    if (kind == cudaMemcpyHostToDevice) return "cudaMemcpyAsync (host to device)";
    if (kind == cudaMemcpyDeviceToHost) return "cudaMemcpyAsync (device to host)";
    return "cudaMemcpyAsync (device to device)";
}

}  // namespace

bool set_strict(bool on) { return strict().exchange(on); }

}  // namespace teon::gpusim

using namespace teon::gpusim;

cudaError_t cudaMalloc(void** p, size_t bytes) { return allocate("cudaMalloc", p, bytes, Memory::device); }
cudaError_t cudaFree(void* p) { return release("cudaFree", p, false); }
cudaError_t cudaMallocHost(void** p, size_t bytes) { return allocate("cudaMallocHost", p, bytes, Memory::pinned); }
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned flags) {
    constexpr unsigned kPortable = 1;       // cudaHostAllocPortable
    constexpr unsigned kWriteCombined = 4;  // cudaHostAllocWriteCombined, which changes speed alone
    flags &= ~(kPortable | kWriteCombined);
    if (flags == cudaHostAllocDefault) return cudaMallocHost(p, bytes);
    if (flags != cudaHostAllocMapped)
        return fail(cudaErrorInvalidValue, "cudaHostAlloc: only mapped, portable and write-combined memory");
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
    return device_error();
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
    if (const cudaError_t status = check("cudaMemsetAsync", to, bytes, true)) return status;
    return submit(stream, "cudaMemsetAsync", [=] { std::memset(to, byte, bytes); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (kind == cudaMemcpyDefault) kind = kind_of(to, from, bytes);
    if (kind == cudaMemcpyHostToHost) return fail(cudaErrorInvalidMemcpyDirection, "a copy from host to host");
    const char* const what = name(kind);
    CopySides sides = {kind != cudaMemcpyDeviceToHost, kind != cudaMemcpyHostToDevice, false};
    if (const cudaError_t status = check_copy(what, to, from, bytes, sides)) return status;
    if (hosts_wait(to, from, bytes))
        return fail(cudaErrorInvalidMemcpyDirection,
                    "a copy from host to host, for which the host would wait: copy by way of device memory");
    const bool captured = is_capturing(stream);
    if (sides.pageable && captured)
        return fail(cudaErrorStreamCaptureUnsupported, "{}: pageable memory during capture", what);
    if (sides.pageable && sides.to_device && !strict()) {  // staged before the call returns
        const auto* bytes_now = static_cast<const char*>(from);
        const auto staged = std::make_shared<const std::vector<char>>(bytes_now, bytes_now + bytes);
        return enqueue(stream, what, [=] { std::memcpy(to, staged->data(), bytes); });
    }
    const bool reads_pinned = sides.to_device && !sides.from_device && !sides.pageable;
    if (reads_pinned) queued_uploads().add(from, bytes);
    if (!sides.to_device && !captured && !queued_uploads().read(to, bytes))
        std::memset(to, kNaN, bytes);  // undefined until the copy is done
    const auto copy = [=] {
        std::memcpy(to, from, bytes);
        if (reads_pinned && !captured) queued_uploads().remove(from, bytes);
    };
    if (const cudaError_t status = enqueue(stream, what, copy)) return status;
    if (!sides.pageable || sides.to_device || strict()) return cudaSuccess;
    ++counters.pageable_waits;
    return wait_for(stream, what);
}
