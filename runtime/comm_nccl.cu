// Ranks on GPUs, over NCCL. Operations run on a stream of the communicator's own: it waits for the caller's stream by
// an event, and join() makes the caller's stream wait for it; the host never waits. A thread looks after errors that
// NCCL reports late and operations that do not end.
#include "runtime/comm.h"

#if __has_include(<nccl.h>)

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "runtime/cuda_check.h"
#include "runtime/rendezvous.h"

namespace teon {

namespace {

using Clock = std::chrono::steady_clock;

void check_nccl(ncclResult_t status, const char* what) {
    CHECK(status == ncclSuccess, "{}: {} (NCCL_DEBUG=INFO tells more)", what, ncclGetErrorString(status));
}

// Made anew by rank 0 of each run; the others are told by the Rendezvous.
std::string unique_id(const Launch& launch) {
    ncclUniqueId id{};
    if (launch.rank == 0) check_nccl(ncclGetUniqueId(&id), "making NCCL's id");
    return std::string(id.internal, sizeof id.internal);
}

class NcclComm final : public Comm {
public:
    explicit NcclComm(const Launch& launch) : launch_(launch), id_(unique_id(launch)), rendezvous_(launch, id_) {
        detail::check_cuda(cudaGetDevice(&device_), "finding the device");
        ncclUniqueId id{};
        CHECK(id_.size() == sizeof id.internal, "rank 0 uses another version of NCCL");
        std::memcpy(id.internal, id_.data(), id_.size());
        check_nccl(ncclCommInitRank(&comm_, launch_.size, id, launch_.rank), "starting NCCL (one GPU for each rank?)");
        zero(token_.data(), 1, stream_);
        watcher_ = std::thread([this] { watch(); });
    }

    // Without a last barrier while an error is on its way up: the others would wait for nothing.
    ~NcclComm() override {
        const bool orderly = std::uncaught_exceptions() == 0;
        if (orderly) {
            barrier();
            rendezvous_.close();
        }
        stop_ = true;
        watcher_.join();
        if (orderly) {
            ncclCommDestroy(comm_);
        } else {
            ncclCommAbort(comm_);
        }
    }

    int rank() const override { return launch_.rank; }
    int size() const override { return launch_.size; }

    void join(const Stream& stream) override {
        joined_.record(stream_);
        joined_.make_wait(stream);
    }

    void barrier() override {
        all_reduce_sum(token_.data(), 1, stream_);
        stream_.synchronize();
    }

    void fail(const std::string& why) noexcept override {
        if (launch_.size > 1) rendezvous_.fail(why);
    }

protected:
    void queue_reduce(float* data, const std::vector<Part>& parts, const Stream& stream) override {
        queue(
            stream,
            [&](const Part& part) {
                float* at = data + part.offset;
                check_nccl(
                    ncclReduce(at, at, static_cast<size_t>(part.size), ncclFloat, ncclSum, part.root, comm_, own()),
                    "reducing gradients");
            },
            parts);
    }

    void queue_broadcast(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream) override {
        const size_t element = size_of(dtype);
        queue(
            stream,
            [&](const Part& part) {
                std::byte* at = static_cast<std::byte*>(data) + static_cast<size_t>(part.offset) * element;
                check_nccl(
                    ncclBroadcast(at, at, static_cast<size_t>(part.size) * element, ncclUint8, part.root, comm_, own()),
                    "broadcasting weights");
            },
            parts);
    }

private:
    struct Pending {
        Event done;
        Clock::time_point queued;
    };

    cudaStream_t own() const { return static_cast<cudaStream_t>(stream_.handle()); }

    // All parts as one operation on the communicator's stream.
    template <typename F>
    void queue(const Stream& after, F&& add_part, const std::vector<Part>& parts) {
        ready_.record(after);
        ready_.make_wait(stream_);
        check_nccl(ncclGroupStart(), "queueing");
        for (const Part& part : parts)
            if (part.size > 0) add_part(part);
        check_nccl(ncclGroupEnd(), "queueing");
        std::lock_guard lock(mutex_);
        if (spare_.empty()) spare_.emplace_back();
        pending_.push_back({std::move(spare_.back()), Clock::now()});
        spare_.pop_back();
        pending_.back().done.record(stream_);
        rendezvous_.progress(++queued_);
    }

    void watch() {
        try {
            detail::check_cuda(cudaSetDevice(device_), "choosing the device");
            while (!stop_) {
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                ncclResult_t status = ncclSuccess;
                check_nccl(ncclCommGetAsyncError(comm_, &status), "asking NCCL for errors");
                if (status != ncclInProgress) check_nccl(status, "exchanging with other ranks");
                if (overdue())
                    rendezvous_.fail(fmt::format("waited {} s for the other ranks", launch_.timeout_s), true);
            }
        } catch (const std::exception& error) { rendezvous_.fail(error.what()); }
    }

    bool overdue() {
        std::lock_guard lock(mutex_);
        while (!pending_.empty() && pending_.front().done.done()) {
            spare_.push_back(std::move(pending_.front().done));
            pending_.pop_front();
        }
        return !pending_.empty() &&
               Clock::now() - pending_.front().queued > std::chrono::duration<double>(launch_.timeout_s);
    }

    const Launch launch_;
    std::string id_;
    Rendezvous rendezvous_;
    int device_ = 0;
    ncclComm_t comm_ = nullptr;
    Stream stream_;
    Event ready_, joined_;
    Buffer<float> token_{1};

    std::mutex mutex_;
    std::deque<Pending> pending_;
    std::vector<Event> spare_;
    int64_t queued_ = 0;
    std::atomic<bool> stop_{false};
    std::thread watcher_;
};

}  // namespace

std::unique_ptr<Comm> make_comm(const Launch& launch) { return std::make_unique<NcclComm>(launch); }

}  // namespace teon

#else

namespace teon {

std::unique_ptr<Comm> make_comm(const Launch& launch) {
    throw Error(
        fmt::format("{} started {} ranks, but this program was built without NCCL: install libnccl-dev and build "
                    "again",
                    launch.by, launch.size));
}

}  // namespace teon

#endif
