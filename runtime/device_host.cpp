// The CPU as a device: memory comes from the C library, streams are done when a call returns, events are clocks.
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "runtime/cgroup.h"
#include "runtime/device.h"
#include "runtime/device_account.h"

namespace teon {

namespace {

// The value of the first line "key : value" of a /proc file; empty if there is none.
std::string proc_value(const char* path, std::string_view key) {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with(key)) continue;
        size_t colon = line.find(':');
        size_t start = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
        if (start != std::string::npos) return line.substr(start);
    }
    return {};
}

size_t total_memory() { return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE); }

// What the system could still give without swapping, and a container's limit allows.
size_t available_memory() {
    std::string kib = proc_value("/proc/meminfo", "MemAvailable");
    const size_t system = kib.empty() ? total_memory() : std::strtoull(kib.c_str(), nullptr, 10) * 1024;
    return std::min<size_t>(system, cgroup_limits().memory_left.value_or(system));
}

// The system grants more than it has and then ends the program, so large requests are compared with what is there.
void* allocate_aligned(size_t bytes) {
    constexpr size_t small = 64 << 20;
    bool fits = bytes <= small || bytes <= available_memory();
    void* p = fits ? std::aligned_alloc(256, (bytes + 255) / 256 * 256) : nullptr;
    CHECK(p != nullptr, "out of memory: {} bytes wanted, {} available; use a smaller batch or model", bytes,
          available_memory());
    return p;
}

using Clock = std::chrono::steady_clock;

}  // namespace

int device_count() { return 1; }

void set_device(int index) {
    CHECK(index == 0, "device {} does not exist: the host backend has device 0 only", index);
    // The OpenMP library counts processors, not what a container lets this process use of them; threads beyond that
    // spin while others wait for their turn.
    const std::optional<double> cpus = cgroup_limits().cpus;
    if (cpus && !std::getenv("OMP_NUM_THREADS"))
        omp_set_num_threads(std::clamp(static_cast<int>(std::ceil(*cpus)), 1, omp_get_max_threads()));
}

DeviceInfo device_info() {
    DeviceInfo info;
    info.name = proc_value("/proc/cpuinfo", "model name");
    if (info.name.empty()) info.name = "CPU";
    info.multiprocessors = omp_get_max_threads();
    info.total_bytes = total_memory();
    info.free_bytes = available_memory();
    return info;
}

const char* backend_name() { return "host"; }
size_t device_bytes_in_use() { return detail::device_bytes.in_use(); }
size_t device_bytes_peak() { return detail::device_bytes.peak(); }

Stream::Stream() = default;
Stream::~Stream() = default;
void Stream::synchronize() const {}

// An event that was not recorded yet counts as done, as on CUDA.
Event::Event() : handle_(new Clock::time_point{}) {}
Event::~Event() { delete static_cast<Clock::time_point*>(handle_); }
void Event::record(const Stream&) { *static_cast<Clock::time_point*>(handle_) = Clock::now(); }
void Event::synchronize() const {}
bool Event::done() const { return true; }
void Event::make_wait(const Stream&) const {}
double Event::milliseconds(const Event& from, const Event& to) {
    auto at = [](const Event& e) { return *static_cast<const Clock::time_point*>(e.handle_); };
    return std::chrono::duration<double, std::milli>(at(to) - at(from)).count();
}

namespace detail {

void* device_allocate(size_t bytes) {
    void* p = allocate_aligned(bytes);
    std::memset(p, 0xff, bytes);  // NaN in every storage type: reading what was never written shows
    device_bytes.add(bytes);
    return p;
}

void device_free(void* p, size_t bytes) noexcept {
    device_bytes.subtract(bytes);
    std::free(p);
}

void mark_profiled_range(bool) {}

void* pinned_allocate(size_t bytes) { return allocate_aligned(bytes); }
void pinned_free(void* p, size_t) noexcept { std::free(p); }

}  // namespace detail

// memmove: a device-to-device copy within one buffer may overlap here without becoming undefined behaviour.
void copy_bytes(void* dst, const void* src, size_t bytes, const Stream&) {
    if (bytes) std::memmove(dst, src, bytes);
}
void upload_bytes(void* dst, const void* src, size_t bytes, const Stream& stream) {
    copy_bytes(dst, src, bytes, stream);
}
void download_bytes(void* dst, const void* src, size_t bytes, const Stream& stream) {
    copy_bytes(dst, src, bytes, stream);
}
void fill_bytes(void* dst, int byte, size_t bytes, const Stream&) {
    if (bytes) std::memset(dst, byte, bytes);
}

}  // namespace teon
