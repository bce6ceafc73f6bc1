// Devices, memory and streams.
// Owners (Stream, Event, Graph, Buffer, PinnedBuffer, Arena) are move-only; everything else is a view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/integer.h"

namespace teon {

// What the program may know about the machine it runs on.
struct DeviceInfo {
    std::string name;  // "NVIDIA H200", or the CPU's model name
    bool is_gpu = false;
    int multiprocessors = 1;        // SMs, or OS threads on a CPU
    int compute_capability = 0;     // 90 for sm_90; 0 on a CPU
    size_t block_shared_bytes = 0;  // that a kernel may have at most
    size_t total_bytes = 0;         // device memory
    size_t free_bytes = 0;          // at the time of the call
    double peak_bf16_flops = 0;     // dense tensor-core peak; 0 when unknown (then no MFU is printed)
};

int device_count();  // 0 on a machine without a usable device; 1 on a CPU
void set_device(int index);
DeviceInfo device_info();
const char* backend_name();    // "cuda" or "cpu"
size_t device_bytes_in_use();  // bytes held by live Buffers and Arenas of this process
size_t device_bytes_peak();

class Profiler;

// An ordered queue of work. On a (kind) CPU everything is done when the call returns.
class Stream {
public:
    // Urgent: where there is not room for all, its work runs before that of other streams (communication).
    explicit Stream(bool urgent = false);
    ~Stream();
    Stream(Stream&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
    Stream& operator=(Stream&& o) noexcept {
        std::swap(handle_, o.handle_);
        return *this;
    }
    void synchronize() const;  // throws Error with the failed kernel's message
    void* handle() const { return handle_; }
    Profiler* profiler() const { return profiler_; }  // that notes what is queued here (runtime/profiler.h), or null
    void set_profiler(Profiler* p) { profiler_ = p; }

private:
    void* handle_ = nullptr;
    Profiler* profiler_ = nullptr;
};

// A point in a stream; also a clock.
class Event {
public:
    Event();
    ~Event();
    Event(Event&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
    Event& operator=(Event&& o) noexcept {
        std::swap(handle_, o.handle_);
        return *this;
    }
    void record(const Stream& stream);
    void synchronize() const;
    bool done() const;
    void make_wait(const Stream& stream) const;                      // stream continues after this event
    static double milliseconds(const Event& from, const Event& to);  // both must be done
private:
    void* handle_ = nullptr;
};

// What was queued on a stream, and on others that it waited for meanwhile, to be queued again as a whole: the same work
// on the same memory, at the cost of one call.
class Graph {
public:
    // Calls queue(), whose work is noted and not done. It must neither wait for the device nor allocate (Error), and what
    // it hands over by address must stay. Other threads may do as they like. Passes on what queue() throws.
    template <typename Queue>
    Graph(const Stream& stream, Queue&& queue) {
        Capture capture(stream);
        queue();
        handle_ = capture.end();
    }
    ~Graph();
    Graph(Graph&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
    Graph& operator=(Graph&& o) noexcept {
        std::swap(handle_, o.handle_);
        return *this;
    }
    void launch(const Stream& stream) const;

private:
    class Capture {
    public:
        explicit Capture(const Stream& stream);
        ~Capture();  // of a capture that has not ended: what was noted is forgotten
        void* end();

    private:
        const Stream* stream_;
    };
    void* handle_ = nullptr;
};

namespace detail {
void* device_allocate(size_t bytes);  // 256-byte aligned; throws Error naming the size and what is free
void device_free(void* p, size_t bytes) noexcept;
void* pinned_allocate(size_t bytes);
void pinned_free(void* p, size_t bytes) noexcept;
void mark_profiled_range(bool on);  // for a profiler outside of the program
}  // namespace detail

// Bytes, asynchronous on the stream. Pageable host memory is allowed but makes the call synchronous.
void copy_bytes(void* dst, const void* src, size_t bytes, const Stream& stream);      // device to device
void upload_bytes(void* dst, const void* src, size_t bytes, const Stream& stream);    // host to device
void download_bytes(void* dst, const void* src, size_t bytes, const Stream& stream);  // device to host
void fill_bytes(void* dst, int byte, size_t bytes, const Stream& stream);

template <typename T>
void copy(T* dst, const T* src, int64_t n, const Stream& s) {
    copy_bytes(dst, src, n * sizeof(T), s);
}
template <typename T>
void upload(T* dst, const T* src, int64_t n, const Stream& s) {
    upload_bytes(dst, src, n * sizeof(T), s);
}
template <typename T>
void download(T* dst, const T* src, int64_t n, const Stream& s) {
    download_bytes(dst, src, n * sizeof(T), s);
}
template <typename T>
void zero(T* dst, int64_t n, const Stream& s) {
    fill_bytes(dst, 0, n * sizeof(T), s);
}

// Device memory for n elements. Fresh memory holds NaN patterns (0xff bytes) on a CPU.
template <typename T>
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(int64_t n) : p_(n ? static_cast<T*>(detail::device_allocate(n * sizeof(T))) : nullptr), n_(n) {}
    ~Buffer() {
        if (p_) detail::device_free(p_, n_ * sizeof(T));
    }
    Buffer(Buffer&& o) noexcept : p_(std::exchange(o.p_, nullptr)), n_(std::exchange(o.n_, 0)) {}
    Buffer& operator=(Buffer&& o) noexcept {
        std::swap(p_, o.p_);
        std::swap(n_, o.n_);
        return *this;
    }
    T* data() const { return p_; }
    int64_t size() const { return n_; }

private:
    T* p_ = nullptr;
    int64_t n_ = 0;
};

// Host memory that the device can copy from and to without staging.
template <typename T>
class PinnedBuffer {
public:
    PinnedBuffer() = default;
    explicit PinnedBuffer(int64_t n)
        : p_(n ? static_cast<T*>(detail::pinned_allocate(n * sizeof(T))) : nullptr), n_(n) {}
    ~PinnedBuffer() {
        if (p_) detail::pinned_free(p_, n_ * sizeof(T));
    }
    PinnedBuffer(PinnedBuffer&& o) noexcept : p_(std::exchange(o.p_, nullptr)), n_(std::exchange(o.n_, 0)) {}
    PinnedBuffer& operator=(PinnedBuffer&& o) noexcept {
        std::swap(p_, o.p_);
        std::swap(n_, o.n_);
        return *this;
    }
    T* data() const { return p_; }
    int64_t size() const { return n_; }
    T& operator[](int64_t i) const { return p_[i]; }

private:
    T* p_ = nullptr;
    int64_t n_ = 0;
};

// One allocation handed out in order, 256-byte aligned. Views stay valid as long as the arena.
class Arena {
public:
    Arena() = default;
    explicit Arena(size_t bytes) : memory_(static_cast<int64_t>(bytes)) {}
    static constexpr size_t aligned(size_t bytes) { return round_up(bytes, 256); }
    template <typename T>
    T* take(int64_t n) {
        size_t bytes = aligned(static_cast<size_t>(n) * sizeof(T));
        CHECK(used_ + bytes <= capacity(), "arena: {} bytes wanted, {} of {} left", bytes, capacity() - used_,
              capacity());
        T* p = reinterpret_cast<T*>(memory_.data() + used_);
        used_ += bytes;
        return p;
    }
    size_t used() const { return used_; }
    size_t capacity() const { return static_cast<size_t>(memory_.size()); }
    void reset() { used_ = 0; }

private:
    Buffer<std::byte> memory_;
    size_t used_ = 0;
};

}  // namespace teon
