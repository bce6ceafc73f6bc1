#include "runtime/cuda/comm.h"

#include <algorithm>

#if __has_include(<nccl.h>) && !defined(TEON_WITHOUT_NCCL)
#include <cuda_runtime.h>
#include <nccl.h>
#define TEON_NCCL
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/standard_streams.h"
#include "runtime/cuda/cuda_check.h"
#include "runtime/cuda/exchange.h"
#endif

namespace teon {

std::vector<Part> even_parts(int64_t n, int ranks, int64_t align) {
    std::vector<Part> parts;
    int64_t begin = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        const int64_t even = n / ranks * (rank + 1) + n % ranks * (rank + 1) / ranks;  // n * (rank + 1) may overflow
        const int64_t end = rank + 1 == ranks ? n : even / align * align;
        parts.push_back({begin, end - begin, rank});
        begin = end;
    }
    return parts;
}

#ifdef TEON_NCCL

namespace {

// Rank 0 reports first: if all ranks fail, its exit ends the others before they report.
[[noreturn]] void end_process(const Launch& launch, const std::string& why, int status = 1) noexcept {
    if (launch.rank > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    print_error(fmt::format("{}: error: rank {} ({}, pid {}): {}\n", program_invocation_short_name, launch.rank, host,
                            ::getpid(), why));
    std::_Exit(status);
}

void check_nccl(ncclResult_t status, const std::string& what, ncclComm_t comm = nullptr) {
    if (status == ncclSuccess) return;
    const std::string words = ncclGetLastError(comm);
    throw Error(fmt::format("{}: {}{}", what, ncclGetErrorString(status),
                            words.empty() ? " (NCCL_DEBUG=INFO tells more)" : ": " + words));
}

// Ends the process, from a thread of its own, if this rank waits too long.
class Watchdog {
public:
    // An operation on the communicator's stream. Its input is ready at `begin`.
    struct Operation {
        std::string name;
        Event begin, end;
    };

    Watchdog(const Launch& launch, double timeout_s) : launch_(launch), timeout_s_(timeout_s) {
        detail::check_cuda(cudaGetDevice(&device_), "finding the device");
        thread_ = std::thread([this] { watch(); });
    }
    ~Watchdog() {
        stop_ = true;
        thread_.join();
    }

    // Until the next call, the host itself waits for the other ranks, in `what`. If `what` is empty, it does not wait.
    void host_waits(std::string what) {
        std::lock_guard lock(mutex_);
        host_waits_ = std::move(what);
        if (queued_.empty()) ++turn_;  // otherwise this rank waits for an operation
    }
    void watch_errors_of(ncclComm_t comm) {
        std::lock_guard lock(mutex_);
        comm_ = comm;
    }
    // Returns a new operation. The caller records its events and passes it to add().
    Operation operation(std::string name) {
        std::lock_guard lock(mutex_);
        if (spare_.empty()) spare_.emplace_back();
        Operation o = std::move(spare_.back());
        spare_.pop_back();
        o.name = fmt::format("{} (operation {})", name, ++operations_);
        return o;
    }
    void add(Operation o) {
        std::lock_guard lock(mutex_);
        queued_.push_back(std::move(o));
    }

private:
    using Clock = std::chrono::steady_clock;
    using Seconds = std::chrono::duration<double>;

    void watch() {
        const auto period = std::chrono::milliseconds(static_cast<int>(std::clamp(timeout_s_ * 50, 5.0, 50.0)));
        double waited = 0;
        int64_t turn = -1;
        try {
            detail::check_cuda(cudaSetDevice(device_), "choosing the device");
            // Querying an event invalidates a capture that another thread has begun, unless this thread's mode is
            // relaxed.
            cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
            detail::check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "allowing queries during captures");
            for (auto last = Clock::now(); !stop_;) {
                std::this_thread::sleep_for(period);
                std::lock_guard lock(mutex_);
                const std::string what = waits_for();
                if (comm_) {
                    ncclResult_t status = ncclSuccess;
                    check_nccl(ncclCommGetAsyncError(comm_, &status), "asking NCCL for errors");
                    if (status != ncclInProgress)
                        check_nccl(status, what.empty() ? "exchanging data with other ranks" : what, comm_);
                }
                // Time during which this process itself was stopped does not count as waiting.
                const auto now = Clock::now();
                const double passed = std::min(Seconds(now - last).count(), 1.0);
                waited = what.empty() || turn != turn_ ? 0 : waited + passed;
                turn = turn_;
                last = now;
                if (waited < timeout_s_) continue;
                const std::string missing = comm_ ? ncclGetLastError(comm_) : "";
                end_process(launch_, fmt::format("{}: waited {} s (--comm-timeout) for the other ranks{}{}", what,
                                                 timeout_s_, missing.empty() ? "" : ": ", missing));
            }
        } catch (const std::exception& error) { end_process(launch_, error.what()); }
    }

    std::string waits_for() {
        while (!queued_.empty() && queued_.front().end.done()) {
            spare_.push_back(std::move(queued_.front()));
            queued_.pop_front();
            ++turn_;
        }
        if (!queued_.empty() && queued_.front().begin.done()) return queued_.front().name;
        return host_waits_;
    }

    const Launch& launch_;
    const double timeout_s_;
    int device_ = 0;
    std::mutex mutex_;
    ncclComm_t comm_ = nullptr;
    std::string host_waits_;
    std::deque<Operation> queued_;
    std::vector<Operation> spare_;
    int64_t operations_ = 0, turn_ = 0;  // turn: changes when this rank waits for something else
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

ncclDataType_t type_of(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return ncclFloat32;
        case DType::bf16:
            return ncclBfloat16;
        case DType::f16:
            return ncclFloat16;
        case DType::e4m3:
        case DType::e5m2:
            break;
    }
    throw Error(fmt::format("ranks exchange no {}", name_of(dtype)));
}

}  // namespace

// Operations run on the communicator's own stream. That stream waits for the caller's stream by an event, and join()
// makes the caller's stream wait for it. The host waits only in barrier() and while NCCL connects to other ranks.
class Comm::Nccl {
public:
    Nccl(const Launch& launch, double timeout_s) : launch_(launch), watchdog_(launch, timeout_s), tokens_(launch.size) {
        std::string where;
        const ncclUniqueId id = meets_through_mpi(launch) ? id_from_mpi() : id_from_address(where);
        watchdog_.host_waits("starting NCCL" + where);
        check_nccl(ncclCommInitRank(&comm_, launch.size, id, launch.rank),
                   "starting NCCL" + where + " (one GPU for each rank?)");
        watchdog_.host_waits("");
        watchdog_.watch_errors_of(comm_);
    }

    ~Nccl() {
        try {
            if (std::uncaught_exceptions() > 0) {
                watchdog_.watch_errors_of(nullptr);
                ncclCommAbort(comm_);
                return;
            }
            barrier();
            watchdog_.watch_errors_of(nullptr);
            watchdog_.host_waits("closing NCCL");
            check_nccl(ncclCommDestroy(comm_), "closing NCCL");
            leave(launch_);
        } catch (const std::exception& error) { end_process(launch_, error.what()); }
    }

    void reduce(void* data, DType dtype, const std::vector<Part>& parts, const Stream& after) {
        queue("reduce_sum", parts, after, [&, type = type_of(dtype)](const Part& part) {
            std::byte* at = address(data, dtype, part);
            return ncclReduce(at, at, static_cast<size_t>(part.size), type, ncclSum, part.root, comm_, own_stream());
        });
    }

    void broadcast(void* data, DType dtype, const std::vector<Part>& parts, const Stream& after) {
        queue("broadcast", parts, after, [&, type = type_of(dtype)](const Part& part) {
            std::byte* at = address(data, dtype, part);
            return ncclBroadcast(at, at, static_cast<size_t>(part.size), type, part.root, comm_, own_stream());
        });
    }

    void join(const Stream& stream) {
        joined_.record(stream_);
        joined_.make_wait(stream);
    }

    void record(Event& event) { event.record(stream_); }

    // Each rank waits for one number from every other rank.
    void barrier() {
        zero(tokens_.data(), tokens_.size(), stream_);
        reduce(tokens_.data(), DType::f32, even_parts(tokens_.size(), launch_.size, 1), stream_);
        stream_.synchronize();
    }

private:
    ncclUniqueId id_from_mpi() {
        watchdog_.host_waits("meeting the other ranks");
        ncclUniqueId id{};
        if (launch_.rank == 0) check_nccl(ncclGetUniqueId(&id), "making NCCL's id");
        const std::string payload = broadcast_over_mpi(launch_, std::string(id.internal, sizeof id.internal));
        std::memcpy(id.internal, payload.data(), sizeof id.internal);
        return id;
    }
    // Every rank makes the same id from the address.
    ncclUniqueId id_from_address(std::string& where) {
        where = " at " + address_of_rank_0(launch_);
        ncclUniqueId id{};
        check_nccl(ncclGetUniqueId(&id), "making NCCL's id" + where);
        return id;
    }

    cudaStream_t own_stream() const { return static_cast<cudaStream_t>(stream_.handle()); }
    static std::byte* address(void* data, DType dtype, const Part& part) {
        return static_cast<std::byte*>(data) + part.offset * int64_t{size_of(dtype)};
    }

    // Queues all parts as one operation on the communicator's stream.
    void queue(const char* name, const std::vector<Part>& parts, const Stream& after,
               const std::function<ncclResult_t(const Part&)>& call) {
        int64_t elements = 0;
        for (const Part& part : parts) elements += part.size;
        if (elements == 0) return;
        if (&after != &stream_) {
            ready_.record(after);
            ready_.make_wait(stream_);
        }
        Watchdog::Operation o = watchdog_.operation(fmt::format("{} of {} elements", name, elements));
        o.begin.record(stream_);
        watchdog_.host_waits(o.name);  // NCCL connects to a rank when it first needs it
        check_nccl(ncclGroupStart(), o.name, comm_);
        ncclResult_t status = ncclSuccess;
        for (const Part& part : parts)
            if (part.size > 0 && status == ncclSuccess) status = call(part);
        const ncclResult_t ended = ncclGroupEnd();  // after an error too: ncclCommAbort would join an open group
        check_nccl(status, o.name, comm_);
        check_nccl(ended, o.name, comm_);
        watchdog_.host_waits("");
        o.end.record(stream_);
        watchdog_.add(std::move(o));
    }

    const Launch& launch_;
    Watchdog watchdog_;
    ncclComm_t comm_ = nullptr;
    Stream stream_{true};
    Event ready_, joined_;
    Buffer<float> tokens_;
};

#else

class Comm::Nccl {
public:
    Nccl(const Launch& launch, double) {
        throw Error(
            fmt::format("{} started {} ranks, but this program was built without NCCL: install libnccl-dev and "
                        "build again",
                        launch.by, launch.size));
    }
    void reduce(void*, DType, const std::vector<Part>&, const Stream&) {}
    void broadcast(void*, DType, const std::vector<Part>&, const Stream&) {}
    void join(const Stream&) {}
    void record(Event&) {}
    void barrier() {}
};

#endif

Comm::Comm(double timeout_s) : launch_(launch_from_environment()) {
    if (launch_.size > 1) nccl_ = std::make_unique<Nccl>(launch_, timeout_s);
}
Comm::~Comm() = default;

void Comm::check(const char* operation, const std::vector<Part>& parts) const {
    for (const Part& part : parts) {
        CHECK(part.size >= 0, "{}: {} elements", operation, part.size);
        CHECK(part.root >= 0 && part.root < size(), "{}: root {}, but this run has the ranks 0 to {}", operation,
              part.root, size() - 1);
    }
}

void Comm::reduce_sum(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream) {
    check("reduce_sum", parts);
    CHECK(dtype != DType::f16, "reduce_sum: sums are float or bf16, not {}", name_of(dtype));
    for (const Part& part : parts)
        if (part.root != rank()) bytes_sent_ += part.size * size_of(dtype);
    if (nccl_) nccl_->reduce(data, dtype, parts, stream);
}

void Comm::broadcast(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream) {
    check("broadcast", parts);
    for (const Part& part : parts)
        if (part.root == rank()) bytes_sent_ += part.size * size_of(dtype) * (size() - 1);
    if (nccl_) nccl_->broadcast(data, dtype, parts, stream);
}

void Comm::all_reduce_sum(float* data, int64_t n, const Stream& stream) {
    CHECK(n >= 0, "all_reduce_sum: {} elements", n);
    const std::vector<Part> parts = even_parts(n, size());
    reduce_sum(data, DType::f32, parts, stream);
    broadcast(data, DType::f32, parts, stream);
}

void Comm::all_gather(void* out, const void* in, int64_t n_each, DType dtype, const Stream& stream) {
    CHECK(n_each >= 0, "all_gather: {} elements", n_each);
    const size_t bytes = static_cast<size_t>(n_each) * size_of(dtype);
    std::byte* part_of_rank = static_cast<std::byte*>(out) + bytes * rank();
    if (part_of_rank != in) copy_bytes(part_of_rank, in, bytes, stream);
    std::vector<Part> parts;
    for (int r = 0; r < size(); ++r) parts.push_back({r * n_each, n_each, r});
    broadcast(out, dtype, parts, stream);
}

void Comm::join(const Stream& stream) {
    if (nccl_) nccl_->join(stream);
}

void Comm::record(Event& event) {
    if (nccl_) nccl_->record(event);
}

void Comm::barrier() {
    if (nccl_) nccl_->barrier();
}

void Comm::fail([[maybe_unused]] const std::string& why, [[maybe_unused]] int status) noexcept {
#ifdef TEON_NCCL
    if (nccl_) end_process(launch_, why, status);
#endif
}

}  // namespace teon
