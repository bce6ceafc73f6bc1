// Device memory on a CPU: the process's own. Copies and fills are ordinary ones.
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/integer.h"
#include "cpu/address_space.h"
#include "cpu/counts.h"
#include "cpu/error.h"
#include "cpu/stream.h"
#include "cpu/system_memory.h"

using namespace teon::cpu;

namespace {

constexpr int64_t kPlanned = int64_t{128} << 20;  // of the libraries, which every plan counts itself (plan/memory.cpp)

// Asks for huge pages, which Linux gives unasked only where transparent huge pages are `always`. A refusal costs only
// time.
void use_huge_pages(void* p, size_t bytes) {
    constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
    const uintptr_t first = teon::round_up(begin, kHugePage), last = (begin + bytes) / kHugePage * kHugePage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

cudaError_t allocate(const char* what, void** p, size_t bytes, bool filled) {
    *p = nullptr;
    if (const cudaError_t status = refuse_in_capture(what)) return status;
    if (bytes == 0) return cudaSuccess;
    if (has_memory(bytes)) *p = std::aligned_alloc(kAlignment, teon::round_up(bytes, kAlignment));
    if (!*p) return fail(cudaErrorMemoryAllocation, "out of memory");
    use_huge_pages(*p, bytes);
    if (filled) std::memset(*p, kNaN, bytes);  // exposes reads of uninitialized memory
    ++counters.allocations;
    return cudaSuccess;
}

// Waits for the device, like cudaFree.
cudaError_t release(const char* what, void* p) {
    if (!p) return cudaSuccess;
    if (const cudaError_t status = refuse_in_capture(what); status != device_error()) return status;
    run_everything();
    std::free(p);
    ++counters.frees;
    return device_error();
}

}  // namespace

cudaError_t cudaMalloc(void** p, size_t bytes) { return allocate("cudaMalloc", p, bytes, true); }
cudaError_t cudaFree(void* p) { return release("cudaFree", p); }
cudaError_t cudaMallocHost(void** p, size_t bytes) { return allocate("cudaMallocHost", p, bytes, false); }
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned flags) {
    if (flags != cudaHostAllocMapped) return fail(cudaErrorInvalidValue, "cudaHostAlloc: only cudaHostAllocMapped");
    return allocate("cudaHostAlloc", p, bytes, true);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
    *device = host;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) { return release("cudaFreeHost", p); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = total_memory();
    *free = std::min(available_memory(), *total);
    if (const std::optional<int64_t> bytes_left = address_space_left())
        *free = std::min<size_t>(*free, std::max<int64_t>(*bytes_left - address_space_of_libraries() + kPlanned, 0));
    return device_error();
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
    return submit(stream, "cudaMemsetAsync", [=] { std::memset(to, byte, bytes); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return submit(stream, "cudaMemcpyAsync", [=] { std::memmove(to, from, bytes); });
}
