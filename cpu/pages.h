// Access to device memory. On a CPU it is ordinary memory of the process. On the modelled GPU (TEON_MODEL_GPU), whose
// allocations have pages of their own, only the device's work may access it, and only within live allocations. Any
// other access ends the program with a message that names the work and the byte.
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

bool dry_run();  // whether CUDA_DRY is set (stream.h)

inline constexpr size_t kAlignment = 256;  // of cudaMalloc
inline constexpr int kNaN = 0xff;          // a byte that, repeated, is NaN in every storage type

// While an object lives, the calling thread may touch device memory. Work on streams and in the thread pool has this
// access already. If the CPU has no protection keys, other threads may meanwhile touch memory that this one has
// touched.
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

// For threads that do only the device's work: lets the calling thread touch device memory whenever another thread may.
void open_device_memory_to_this_thread();

// Touches memory before a system call or another process does: without protection keys, their first access would fail.
inline void fault_in(const void* p) { (void)*static_cast<const volatile char*>(p); }

// The name of the running operation, for messages; null if none runs.
inline std::atomic<const char*> work_in_progress = nullptr;

// mapped: host memory for kernels. The host itself may not touch it, because nothing would order its accesses.
enum class Memory { pageable, pinned, mapped, device };

// Modelled GPU: returns the addresses and sizes of all live allocations that a device's kernels may touch, by address.
std::vector<std::pair<uintptr_t, size_t>> device_allocations(int device);

// Modelled GPU: allocates memory of a device or of the host between pages that cannot be touched; null if none is left.
// Releasing it, on behalf of the call `what`, fails if the matching call did not allocate it, or if something was
// written outside of it.
void* allocate_pages(size_t bytes, Memory kind, int device);
cudaError_t release_pages(const char* what, void* p, bool pinned);

// Returns the kind of the memory [p, p + bytes). If only part of it is in an allocation, or it was freed, `why` says
// so.
Memory memory_kind(const void* p, size_t bytes, std::string& why);

}  // namespace teon::cpu
