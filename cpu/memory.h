// The memories of the device. Kind: device memory is the process's memory. Unkind (TEON_UNKIND): the host cannot touch
// it, neither can anybody touch what lies behind its end or has been freed, and the functions know what is device
// memory, pinned or neither.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace teon::cpu {

#if defined(TEON_UNKIND)
inline constexpr bool kUnkind = true;
#else
inline constexpr bool kUnkind = false;
#endif

// While one of these lives, the calling thread may touch device memory. What runs on streams and in the thread pool has
// one already. Where the CPU has no protection keys, other threads may meanwhile touch what such a thread has touched.
class DeviceAccess {
public:
    DeviceAccess() {
        if constexpr (kUnkind) open();
    }
    ~DeviceAccess() {
        if constexpr (kUnkind) close();
    }
    DeviceAccess(const DeviceAccess&) = delete;

private:
    static void open();
    static void close() noexcept;
};

// Before memory is given to a system call or to another process, whose first touch is refused where there are no keys.
inline void touch(const void* p) { (void)*static_cast<const volatile char*>(p); }

// For the threads that do the device's work and nothing else: they may touch it whenever somebody may.
void open_device_memory_to_this_thread();

// Strict: frees and copies of pageable memory do not wait, so that a program which relies on their waiting is found.
// Returns what it was; the environment variable CUDA_STRICT=1 begins so.
bool set_strict(bool on);

enum class Memory { pageable, pinned, device };

// What [p, p + bytes) is, all of it; with a reason in `why` if it is neither, so partly or no longer memory.
Memory memory_kind(const void* p, size_t bytes, std::string& why);

// The begins and sizes of all live allocations of device memory, in order; empty unless unkind.
std::vector<std::pair<uintptr_t, size_t>> device_allocations();

}  // namespace teon::cpu
