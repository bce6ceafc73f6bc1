// Who may touch device memory. On a CPU anybody: it is the process's memory. On the modelled GPU (TEON_MODEL_GPU),
// whose allocations are pages of their own: the device's work only, within allocations that are alive; everything else
// ends the program with a message that names the work and the byte.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cpu/include/cuda_runtime.h"

namespace teon::cpu {

#if defined(TEON_MODEL_GPU)
inline constexpr bool kModelGpu = true;
#else
inline constexpr bool kModelGpu = false;
#endif

bool dry_run();  // CUDA_DRY: stream.h

inline constexpr size_t kAlignment = 256;  // of cudaMalloc
inline constexpr int kNaN = 0xff;          // a byte that makes NaN of every storage type

// While one of these lives, the calling thread may touch device memory. What runs on streams and in the thread pool has
// one already. Where the CPU has no protection keys, other threads may meanwhile touch what such a thread has touched.
class DeviceAccess {
public:
    DeviceAccess() {
        if constexpr (kModelGpu) open();
    }
    ~DeviceAccess() {
        if constexpr (kModelGpu) close();
    }
    DeviceAccess(const DeviceAccess&) = delete;

private:
    static void open();
    static void close() noexcept;
};

// For the threads that do the device's work and nothing else: they may touch it whenever another thread may.
void open_device_memory_to_this_thread();

// Before memory is given to a system call or to another process, whose first touch is refused where there are no keys.
inline void fault_in(const void* p) { (void)*static_cast<const volatile char*>(p); }

// The operation that runs now, for messages; null: none.
inline std::atomic<const char*> work_in_progress = nullptr;

// Mapped: the host's, which kernels reach; the host itself may not touch it, as its accesses would be in no order.
enum class Memory { pageable, pinned, mapped, device };

// Of the modelled GPU: the begins and sizes of all live allocations that a device's kernels may touch, in order.
std::vector<std::pair<uintptr_t, size_t>> device_allocations(int device);

// Of the modelled GPU: memory of a device or of the host, between pages that cannot be touched; null if none is left.
// Releasing it on behalf of the call `what` fails where it was not allocated so, or something was written beyond it.
void* allocate_pages(size_t bytes, Memory kind, int device);
cudaError_t release_pages(const char* what, void* p, bool pinned);

// What [p, p + bytes) is, all of it; with a reason in `why` if it is neither, so partly or no longer memory.
Memory memory_kind(const void* p, size_t bytes, std::string& why);

}  // namespace teon::cpu
