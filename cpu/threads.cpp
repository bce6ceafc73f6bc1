#include "cpu/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "cpu/cgroup.h"
#include "cpu/hardware.h"
#include "cpu/signals.h"

namespace teon::cpu {

namespace {

constexpr int kMostThreads = 1024;

// The time for which a thread spins before it sleeps. Waking a thread takes some microseconds, on a virtual machine
// tens of them, and the kernels of a training step follow each other faster than that.
constexpr std::chrono::microseconds kSpin{30};

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free, "futexes are plain words");

// If the word has this value, sleeps until a thread wakes it. May return early.
void futex_wait(Word& word, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void futex_wake(Word& word, int threads) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins for a short time until done() holds, and returns whether it does. Does not call sched_yield: from 6.18 on,
// Linux moves its caller back by a whole time slice each time, which in a loop also delays other threads.
template <typename F>
bool spin_until(F done) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (done()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    return done();
}

}  // namespace

int detail::usable_processors() {
    cpu_set_t set;
    // Machines with more processors than a cpu_set_t holds refuse the call.
    int processors = static_cast<int>(std::thread::hardware_concurrency());
    if (sched_getaffinity(0, sizeof set, &set) == 0) processors = CPU_COUNT(&set);
    if (const std::optional<double> cpus = cgroup_limits().cpus)
        processors = std::min(processors, static_cast<int>(std::ceil(*cpus)));
    return std::max(processors, 1);
}

namespace {

std::atomic<int>& count() {
    static std::atomic<int> threads =
        detail::bounded_threads(detail::usable_processors(), std::getenv("TEON_THREADS"),
                                std::getenv("OMP_NUM_THREADS"), std::getenv("SLURM_CPUS_PER_TASK"));
    return threads;
}

// Whether this thread is inside of a body.
constinit thread_local bool busy = false;

// One parallel_for: the remaining chunks, and the error of the lowest index.
class Loop {
public:
    Loop(int64_t n, int64_t chunk, const std::function<void(int64_t)>& body) : n_(n), chunk_(chunk), body_(body) {}

    // Takes and runs chunks until none is left.
    void work() {
        busy = true;
        const auto take = [&] { return next_.fetch_add(chunk_, std::memory_order_relaxed); };
        for (int64_t begin = take(); begin < n_; begin = take()) {
            const int64_t end = std::min(n_, begin + chunk_);
            for (int64_t i = begin; i < end && i < failed_.load(std::memory_order_relaxed); ++i) {
                try {
                    body_(i);
                } catch (...) { fail(i, std::current_exception()); }
            }
        }
        busy = false;
    }

    void rethrow() const {
        if (error_) std::rethrow_exception(error_);
    }

private:
    void fail(int64_t i, std::exception_ptr error) {
        const std::lock_guard lock(mutex_);
        if (i >= failed_) return;
        failed_ = i;
        error_ = error;
    }

    const int64_t n_, chunk_;
    const std::function<void(int64_t)>& body_;
    alignas(64) std::atomic<int64_t> next_ = 0;
    alignas(64) std::atomic<int64_t> failed_ = INT64_MAX;  // the lowest i that has thrown
    std::mutex mutex_;
    std::exception_ptr error_;
};

// The workers, which live as long as the process. A loop offers a number of places, and a worker that takes a place
// joins the loop. The loop ends when no chunk is left and every worker that joined has left. The caller never waits for
// a worker that has not joined: on a busy machine it does the work itself.
class Pool {
public:
    void run(Loop& loop, int helpers) {
        grow(helpers);
        loop_ = &loop;
        places_.store(static_cast<uint32_t>(helpers) << kFreeShift);
        round_.fetch_add(1);
        // Workers that spin see the new round without being woken.
        const int awake = static_cast<int>(workers_ - sleeping_.load());
        if (helpers > awake) futex_wake(round_, helpers - awake);
        loop.work();
        places_.fetch_and(kJoined);
        const auto empty = [&] { return places_.load(std::memory_order_acquire) == 0; };
        if (spin_until(empty)) return;
        waiting_.store(true);
        for (uint32_t places = places_.load(); places != 0; places = places_.load()) futex_wait(places_, places);
        waiting_.store(false);
    }

    std::mutex mutex;  // held by the thread that runs a loop

private:
    // Starts workers up to this number. They block signals, which other threads of the program handle.
    void grow(int helpers) {
        if (workers_ >= static_cast<uint32_t>(helpers)) return;
        const HeldSignals held;
        try {
            for (; workers_ < static_cast<uint32_t>(helpers); ++workers_) {
                std::thread worker([this] { serve(); });
                pthread_setname_np(worker.native_handle(), "teon-worker");
                worker.detach();
            }
        } catch (const std::system_error& error) {
            throw Error(fmt::format("the system refuses worker thread {}: {}; lower TEON_THREADS", workers_ + 1,
                                    error.code().message()));
        }
    }

    [[noreturn]] void serve() {
        begin_device_thread();
        for (uint32_t seen = 0;;) {
            if (!spin_until([&] { return round_.load(std::memory_order_relaxed) != seen; })) {
                sleeping_.fetch_add(1);
                while (round_.load() == seen) futex_wait(round_, seen);
                sleeping_.fetch_sub(1);
            }
            seen = round_.load();
            if (!join()) continue;
            loop_->work();
            // The last worker to leave wakes the caller, which may be asleep.
            if (places_.fetch_sub(1) == 1 && waiting_.load()) futex_wake(places_, 1);
        }
    }

    bool join() {
        uint32_t places = places_.load();
        while (places >> kFreeShift != 0)
            if (places_.compare_exchange_weak(places, places - (1u << kFreeShift) + 1)) return true;
        return false;
    }

    static constexpr int kFreeShift = 16;
    static constexpr uint32_t kJoined = 0xffff;
    static_assert(kMostThreads < kJoined);

    Loop* loop_ = nullptr;               // valid for workers that joined
    uint32_t workers_ = 0;               // under mutex
    alignas(64) Word places_ = 0;        // free places in the upper half, workers that joined in the lower one
    alignas(64) Word round_ = 0;         // number of loops so far
    alignas(64) Word sleeping_ = 0;      // workers that sleep until the next loop
    std::atomic<bool> waiting_ = false;  // the caller sleeps until places_ is 0
};

Pool& pool() {
    static Pool* workers = new Pool;  // never destroyed, because its threads never end
    return *workers;
}

}  // namespace

int thread_count() { return count().load(std::memory_order_relaxed); }

int set_thread_count(int threads) {
    CHECK(threads >= 1 && threads <= kMostThreads, "set_thread_count: {} threads; it must be 1 to {}", threads,
          kMostThreads);
    return count().exchange(threads);
}

void detail::parallel_for(int64_t n, int64_t chunk, const std::function<void(int64_t)>& body) {
    CHECK(chunk >= 1, "parallel_for: a chunk of {}; it must be at least 1", chunk);
    const int64_t chunks = n / chunk + (n % chunk != 0);
    const int helpers = static_cast<int>(std::min<int64_t>(chunks, thread_count())) - 1;
    if (helpers > 0 && !busy) {
        if (std::unique_lock lock(pool().mutex, std::try_to_lock); lock) {
            Loop loop(n, chunk, body);
            pool().run(loop, helpers);
            loop.rethrow();
            return;
        }
    }
    for (int64_t i = 0; i < n; ++i) body(i);
}

int detail::bounded_threads(int processors, const char* teon_threads, const char* omp_num_threads,
                            const char* slurm_cpus_per_task) {
    int threads = std::min(processors, kMostThreads);
    const auto bound = [&](const char* text) {
        int limit = 0;
        const auto [end, status] = std::from_chars(text, text + std::strlen(text), limit);
        if (status != std::errc() || limit < 1) return false;
        threads = std::min(threads, limit);
        return *end == '\0';
    };
    CHECK(teon_threads == nullptr || bound(teon_threads), "TEON_THREADS is \"{}\"; it must be a positive integer",
          teon_threads);
    if (const char* text = omp_num_threads ? omp_num_threads : slurm_cpus_per_task) bound(text);
    return threads;
}

}  // namespace teon::cpu
