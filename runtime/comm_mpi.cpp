// Ranks on CPUs, over MPI. A thread of the communicator's own makes every MPI call, one operation after the other,
// while the caller computes. Sums are made here and not by MPI, in the order of the ranks, so that they depend neither
// on timing nor on the MPI library: each rank sends its part straight to the part's root.
#include "runtime/comm.h"

#if __has_include(<mpi.h>)

#define OMPI_SKIP_MPICXX  // the C++ bindings of old would need a library of their own
#define MPICH_SKIP_MPICXX
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "cpu/memory.h"
#include "runtime/rendezvous.h"

namespace teon {

namespace {

using Clock = std::chrono::steady_clock;

// MPI counts in int; longer messages go in pieces, whose number both sides know.
constexpr int64_t kLongest = int64_t{1} << 28;

class MpiComm final : public Comm {
public:
    explicit MpiComm(const Launch& launch) : launch_(launch), rendezvous_(launch, nothing_) {
        thread_ = std::thread([this] { work(); });
        barrier();  // MPI is there
    }

    // Without a last barrier while an error is on its way up: the others would wait for nothing.
    ~MpiComm() override {
        if (std::uncaught_exceptions() == 0) {
            barrier();
            rendezvous_.close();
            finalize_ = true;
        }
        {
            std::lock_guard lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    int rank() const override { return launch_.rank; }
    int size() const override { return launch_.size; }

    void join(const Stream&) override {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return done_ == queued_; });
    }

    void barrier() override {
        queue([this] { wait_for([](MPI_Request* r) { MPI_Ibarrier(MPI_COMM_WORLD, r); }); });
        join(Stream());
    }

    void fail(const std::string& why) noexcept override {
        if (launch_.size > 1) rendezvous_.fail(why);
    }

protected:
    void queue_reduce(float* data, const std::vector<Part>& parts, const Stream& stream) override {
        stream.synchronize();
        queue([this, data, parts] { reduce(data, parts); });
    }

    void queue_broadcast(void* data, DType dtype, const std::vector<Part>& parts, const Stream& stream) override {
        stream.synchronize();
        queue([this, data, dtype, parts] { spread(static_cast<std::byte*>(data), size_of(dtype), parts); });
    }

private:
    void queue(std::function<void()> operation) {
        {
            std::lock_guard lock(mutex_);
            operations_.push_back(std::move(operation));
            rendezvous_.progress(++queued_);
        }
        changed_.notify_all();
    }

    // ---- on the communicator's thread -----------------------------------------------------------

    void work() {
        start();
        for (std::unique_lock lock(mutex_);;) {
            changed_.wait(lock, [this] { return stop_ || !operations_.empty(); });
            if (operations_.empty()) break;
            const std::function<void()> operation = std::move(operations_.front());
            operations_.pop_front();
            lock.unlock();
            {
                const cpu::DeviceAccess access;
                operation();
            }
            lock.lock();
            ++done_;
            changed_.notify_all();
        }
        // Without goodbye there is no finalizing: it would wait for the others. The launcher ends them.
        if (finalize_) MPI_Finalize();
    }

    void start() {
        int provided = 0, size = 1, rank = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        if (size != launch_.size || rank != launch_.rank)
            rendezvous_.fail(
                fmt::format("{} says rank {} of {}, but MPI says {} of {}; launch with the mpirun of the MPI that "
                            "this program was built with",
                            launch_.by, launch_.rank, launch_.size, rank, size));
    }

    using Exchange = std::vector<MPI_Request>;  // messages under way

    template <typename Post>
    static void post(Exchange& e, void* data, int64_t bytes, Post operation) {
        for (int64_t begin = 0; begin < bytes; begin += kLongest) {
            operation(static_cast<std::byte*>(data) + begin, static_cast<int>(std::min(kLongest, bytes - begin)),
                      &e.emplace_back());
        }
    }
    static void send(Exchange& e, const void* data, int64_t bytes, int to) {
        post(e, const_cast<void*>(data), bytes,
             [to](void* p, int n, MPI_Request* r) { MPI_Isend(p, n, MPI_BYTE, to, 0, MPI_COMM_WORLD, r); });
    }
    static void receive(Exchange& e, void* data, int64_t bytes, int from) {
        post(e, data, bytes,
             [from](void* p, int n, MPI_Request* r) { MPI_Irecv(p, n, MPI_BYTE, from, 0, MPI_COMM_WORLD, r); });
    }

    void reduce(float* data, const std::vector<Part>& parts) {
        int64_t own = 0;
        for (const Part& part : parts) own += part.root == rank() ? part.size : 0;
        staging_.resize(std::max(staging_.size(), static_cast<size_t>(own * (size() - 1))));
        Exchange e;
        float* next = staging_.data();
        for (const Part& part : parts) {
            const int64_t bytes = part.size * static_cast<int64_t>(sizeof(float));
            if (part.root != rank()) {
                send(e, data + part.offset, bytes, part.root);
                continue;
            }
            for (int r = 0; r < size(); ++r) {
                if (r == rank()) continue;
                receive(e, next, bytes, r);
                next += part.size;
            }
        }
        finish(e);
        const float* terms = staging_.data();
        for (const Part& part : parts) {
            if (part.root != rank()) continue;
            add_in_order(data + part.offset, terms, part.size);
            terms += part.size * (size() - 1);
        }
    }

    // x = ((x_0 + x_1) + x_2) + ..: the own x at its place among the others, which lie in terms one after the other.
    void add_in_order(float* x, const float* terms, int64_t n) const {
        if (size() == 1) return;
        constexpr int64_t kBlock = 4096;
        float sum[kBlock];
        for (int64_t begin = 0; begin < n; begin += kBlock) {
            const int64_t count = std::min(kBlock, n - begin);
            for (int r = 0; r < size(); ++r) {
                const float* from = r == rank() ? x + begin : terms + (r < rank() ? r : r - 1) * n + begin;
                if (r == 0) {
                    std::copy(from, from + count, sum);
                } else {
                    for (int64_t i = 0; i < count; ++i) sum[i] += from[i];
                }
            }
            std::copy(sum, sum + count, x + begin);
        }
    }

    void spread(std::byte* data, size_t element, const std::vector<Part>& parts) {
        Exchange e;
        for (const Part& part : parts) {
            std::byte* at = data + part.offset * static_cast<int64_t>(element);
            const int64_t bytes = part.size * static_cast<int64_t>(element);
            if (part.root != rank()) {
                receive(e, at, bytes, part.root);
                continue;
            }
            for (int r = 0; r < size(); ++r)
                if (r != rank()) send(e, at, bytes, r);
        }
        finish(e);
    }

    // Waits without occupying a core: ranks on CPUs share theirs with the kernels.
    void finish(Exchange& e) {
        const auto begin = Clock::now();
        for (int done = 0, pause = 10;; pause = std::min(2 * pause, 200)) {
            MPI_Testall(static_cast<int>(e.size()), e.data(), &done, MPI_STATUSES_IGNORE);
            if (done) return;
            if (Clock::now() - begin > std::chrono::duration<double>(launch_.timeout_s))
                rendezvous_.fail(fmt::format("waited {} s for the other ranks", launch_.timeout_s), true);
            std::this_thread::sleep_for(std::chrono::microseconds(pause));
        }
    }

    template <typename Post>
    void wait_for(Post operation) {
        Exchange e;
        operation(&e.emplace_back());
        finish(e);
    }

    const Launch launch_;
    std::string nothing_;
    Rendezvous rendezvous_;
    std::vector<float> staging_;  // what the other ranks sent of the parts that this one sums up

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> operations_;
    int64_t queued_ = 0, done_ = 0;
    bool stop_ = false, finalize_ = false;
    std::thread thread_;
};

}  // namespace

std::unique_ptr<Comm> make_comm(const Launch& launch) { return std::make_unique<MpiComm>(launch); }

}  // namespace teon

#else

namespace teon {

std::unique_ptr<Comm> make_comm(const Launch& launch) {
    throw Error(
        fmt::format("{} started {} ranks, but this program was built without MPI: install libopenmpi-dev and build "
                    "again",
                    launch.by, launch.size));
}

}  // namespace teon

#endif
