// Devices, memory and streams.
// Owners (Stream, Event, Graph, Buffer, PinnedBuffer) are move-only; everything else is a view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/dtype.h"
#include "base/enum_names.h"
#include "base/gpus.h"
#include "base/integer.h"

namespace teon {

// A failed allocation of device memory or pinned host memory. The message gives the bytes requested and available;
// callers add the purpose.
struct OutOfMemory : Error {
    using Error::Error;
};

// Properties of the machine that the program runs on.
struct DeviceInfo {
    std::string name;  // "NVIDIA H200", or the CPU's model name
    bool is_gpu = false;
    int multiprocessors = 1;        // SMs, or OS threads on a CPU
    int compute_capability = 0;     // 90 for sm_90; 0 on a CPU
    size_t block_shared_bytes = 0;  // the most shared memory of a block
    size_t total_bytes = 0;         // device memory
    size_t free_bytes = 0;          // at the time of the call
    double peak_bf16_flops = 0;     // dense tensor-core peak; 0 if unknown (then no MFU is printed)
};

int device_count();     // 0 on a machine without a usable device; 1 on a CPU
void require_device();  // throws Error with the reason if there is none
void set_device(int index);
DeviceInfo device_info();
DeviceInfo device_of(const GpuSheet& gpu);  // of an idle GPU that need not be present
const char* backend_name();                 // "cuda" or "cpu"
size_t device_bytes_in_use();               // bytes held by live Buffers of this process
size_t device_bytes_peak();

class Profiler;

namespace detail {

// Owns an object of a library, which Destroy frees. T is a pointer.
template <typename T, auto Destroy>
class Handle {
public:
    using Type = T;
    Handle() = default;
    explicit Handle(T object) : object_(object) {}
    Handle(Handle&& h) noexcept : object_(std::exchange(h.object_, nullptr)) {}
    Handle& operator=(Handle&& h) noexcept {
        std::swap(object_, h.object_);
        return *this;
    }
    ~Handle() {
        if (object_) Destroy(object_);
    }
    T get() const { return object_; }

private:
    T object_ = nullptr;
};
void destroy_stream(void* stream);
void destroy_event(void* event);
void destroy_graph(void* graph);

}  // namespace detail

// The kernels that a stream launches: the fastest for its device, each of which may start while the one before it ends
// (runtime/simt.h); the same, each after the end of the one before it; or likewise, and of those that exist for several
// architectures the one for sm_80, so that a fault of a newer one does not stop a run.
enum class Kernels { fastest, in_turn, portable };
template <>
inline constexpr auto kEnumNames<Kernels> = enum_names<Kernels>({{Kernels::fastest, "fastest"},
                                                                 {Kernels::in_turn, "in-turn"},
                                                                 {Kernels::portable, "portable"}});

// An ordered queue of work. On a CPU, work is done when the call that queues it returns, except on streams with
// communication.
class Stream {
public:
    // If the device has no room for all work, the work of urgent streams (communication) runs before that of others.
    explicit Stream(bool urgent = false);
    void synchronize() const;  // throws Error with the failed kernel's message
    void* handle() const { return handle_.get(); }
    Profiler* profiler() const { return profiler_; }  // records the work queued here (runtime/cuda/profiler.h), or null
    void set_profiler(Profiler* p) { profiler_ = p; }
    Kernels kernels() const { return kernels_; }
    void set_kernels(Kernels k) { kernels_ = k; }

private:
    detail::Handle<void*, detail::destroy_stream> handle_;
    Kernels kernels_ = Kernels::fastest;
    Profiler* profiler_ = nullptr;
};

// A point in a stream, with a time stamp.
class Event {
public:
    Event();
    void record(const Stream& stream);
    void synchronize() const;
    bool done() const;
    void make_wait(const Stream& stream) const;                      // the stream continues after this event
    static double milliseconds(const Event& from, const Event& to);  // both must be done
private:
    detail::Handle<void*, detail::destroy_event> handle_;
};

// Work captured from a stream, and from other streams that joined it meanwhile. launch() queues all of it again, the
// same work on the same memory, at the cost of one call.
class Graph {
public:
    // Calls queue() and captures its work instead of running it. queue() must neither wait for the device nor allocate:
    // both throw Error. Memory whose address it passes to the work must stay valid. Other threads are not restricted.
    // Exceptions of queue() propagate.
    template <typename Queue>
    Graph(const Stream& stream, Queue&& queue) {
        Capture capture(stream);
        queue();
        handle_ = decltype(handle_)(capture.end());
    }
    void launch(const Stream& stream) const;

private:
    class Capture {
    public:
        explicit Capture(const Stream& stream);
        ~Capture();  // discards the work if end() was not called
        void* end();

    private:
        const Stream* stream_;
    };
    detail::Handle<void*, detail::destroy_graph> handle_;
};

namespace detail {
void* device_allocate(size_t bytes);  // 256-byte aligned; throws OutOfMemory with the size and the free memory
void device_free(void* p, size_t bytes) noexcept;
void* pinned_allocate(size_t bytes);
void pinned_free(void* p, size_t bytes) noexcept;
void* mapped_allocate(size_t bytes);
void mapped_free(void* p, size_t bytes) noexcept;
void mark_profiled_range(bool on);  // for an external profiler
}  // namespace detail

// Copy or fill bytes, asynchronously on the stream. Pageable host memory is allowed but makes the call synchronous.
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

// Rounds bytes up to the alignment of every Buffer, for dividing a Buffer into aligned pieces.
template <typename N>
constexpr N aligned(N bytes) {
    return round_up(bytes, N{256});
}

// Owns memory for n elements.
template <typename T, void* (*Allocate)(size_t), void (*Free)(void*, size_t) noexcept>
class Owned {
public:
    Owned() = default;
    explicit Owned(int64_t n) : p_(n ? static_cast<T*>(Allocate(n * sizeof(T))) : nullptr), n_(n) {}
    ~Owned() {
        if (p_) Free(p_, n_ * sizeof(T));
    }
    Owned(Owned&& o) noexcept : p_(std::exchange(o.p_, nullptr)), n_(std::exchange(o.n_, 0)) {}
    Owned& operator=(Owned&& o) noexcept {
        std::swap(p_, o.p_);
        std::swap(n_, o.n_);
        return *this;
    }
    T* data() const { return p_; }
    int64_t size() const { return n_; }
    T& operator[](int64_t i) const requires(Free == &detail::pinned_free) { return p_[i]; }

private:
    T* p_ = nullptr;
    int64_t n_ = 0;
};
// Device memory. On a CPU, fresh memory holds NaN patterns (0xff bytes).
template <typename T>
using Buffer = Owned<T, detail::device_allocate, detail::device_free>;
// Host memory that the device can copy from and to without staging.
template <typename T>
using PinnedBuffer = Owned<T, detail::pinned_allocate, detail::pinned_free>;

// Device memory or, if offloaded, pinned host memory at a device address, which kernels read and write over PCIe. The
// host accesses neither.
template <typename T>
class OffloadableBuffer {
public:
    OffloadableBuffer() = default;
    OffloadableBuffer(int64_t n, bool offload) : device_(offload ? 0 : n), host_(offload ? n : 0) {}
    T* data() const { return device_.data() ? device_.data() : host_.data(); }
    int64_t size() const { return device_.size() + host_.size(); }

private:
    Buffer<T> device_;
    Owned<T, detail::mapped_allocate, detail::mapped_free> host_;
};

}  // namespace teon
